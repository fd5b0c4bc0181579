"""The annotations of SumMe and TVSum as their authors published them.

Layouts below a folder:

    SumMe   GT/<name>.mat, or <name>.mat: user_score [frames, people], more than 0 is chosen;
            nFrames; segments are not read, as every person had their own
    TVSum   ydata-tvsum50-anno.tsv, below any folder: video id, category, and the ratings of all
            frames, 1 to 5, by commas; a line per person

Neither has features or shots. Licence: for research only; neither is packaged. Source: Gygli et
al., "Creating summaries from user videos", ECCV 2014; Song et al., "TVSum: summarizing web videos
using titles", CVPR 2015.
"""
