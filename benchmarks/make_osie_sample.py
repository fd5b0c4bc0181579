"""Draw the packaged OSIE sample: 160 of 700 images, all 15 viewers, every fixation of theirs.

Run: python -m benchmarks.make_osie_sample OSIE_ROOT [TARGET]

OSIE_ROOT holds stimuli/ID.jpg and fixations.npz or fixations.mat. Pictures of 320x240 are copied as
they are, larger ones are resized (Lanczos) and saved as JPEG of quality 88. Of the images that the
whole set trains on, validates and tests under the default split, the same shares are drawn, so
that the sample keeps the part of every image. LICENSE (the MIT notice) stays beside the pictures.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from vergence.data.saliency.osie import COLUMNS, OSIE, SAMPLE, Osie, read_fixations
from vergence.data.splits import part_sizes

SEED, COUNT, SIZE, QUALITY = 2014, 160, (320, 240), 88


def draw() -> np.ndarray:
    """Return the image numbers, ascending."""
    rng, shares = np.random.default_rng(SEED), Osie().shares
    order = OSIE.first + np.random.default_rng(Osie().split_seed).permutation(OSIE.count)
    _, val, test = part_sizes(OSIE.count, shares, "images")
    tested, held, trained = np.split(order, [test, test + val])
    sizes = part_sizes(COUNT, shares, "images")
    parts = zip((trained, held, tested), sizes, strict=True)
    return np.sort(np.concatenate([rng.choice(part, size, replace=False) for part, size in parts]))


def copy_picture(source: Path, target: Path) -> None:
    with Image.open(source) as image:
        if image.size == SIZE:
            shutil.copyfile(source, target)
        else:
            image.resize(SIZE, Image.Resampling.LANCZOS).save(target, quality=QUALITY)


def main(root: Path, target: Path) -> None:
    numbers = draw()
    (target / "stimuli").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        name = f"{number}.jpg"
        copy_picture(root / "stimuli" / name, target / "stimuli" / name)
    table, _ = read_fixations(root)
    kept = np.isin(table["image"], numbers)
    columns = {name: table[name][kept] for name in COLUMNS}
    totals = np.array([len(numbers), len(np.unique(columns["viewer"])), kept.sum()])
    np.savez_compressed(target / "fixations.npz", allow_pickle=False, **columns, totals=totals)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{totals[0]} images, {totals[1]} viewers, {totals[2]} fixations, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE)
