"""Decoded video on disk: used again, mended, resumed, bounded, shared; never a half file."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.data.footage import number, write_video
from tests.data.io.test_video import UNEVEN, aria_folder
from vergence.data.gaze_video import clip_cache
from vergence.data.gaze_video.aria import Aria
from vergence.data.gaze_video.clip_cache import (
    ClipWindow,
    identity,
    limit_bytes,
    load_clips,
    open_video,
)
from vergence.data.io.video import Video
from vergence.errors import ConfigError, DataError
from vergence.system.file_locks import lock, lock_shared

SIZE = (64, 48)
FRAME = 64 * 48 * 3
ENTRY = 4096 + 60 * FRAME
"""Bytes of an entry of 60 frames: one page of header, then the frames."""
CHILD = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Ten frames a block: 60 frames are six of them."""
    monkeypatch.setattr(clip_cache, "BLOCK_BYTES", 10 * FRAME)


@pytest.fixture
def path(tmp_path):
    return write_video(tmp_path / "a.mp4", UNEVEN)


@pytest.fixture
def decoded(monkeypatch):
    """The rows decoded so far; `stop` in it interrupts before that row."""
    rows = []
    real = Video.frames

    def frames(self, wanted=None, *size):
        for row, frame in zip(wanted, real(self, wanted, *size), strict=True):
            if row == stop.get("before"):
                raise stop["with"]
            rows.append(row)
            yield frame

    stop = {}
    monkeypatch.setattr(Video, "frames", frames)
    return rows, stop


def load(path, rows=range(60), size=SIZE):
    (frames,) = load_clips([[ClipWindow(path, open_video(path), np.array(rows))]], size)
    return frames


def entries(cache, kind="safetensors"):
    return sorted((cache / "clips").glob(f"*.{kind}"))


def shown(frames):
    return [number(f) for f in frames.numpy()]


def test_the_second_load_decodes_nothing_and_gives_the_same(path, decoded, cache):
    expected = torch.from_numpy(Video.open(path).read(list(range(60)), *SIZE))
    decoded[0].clear()
    assert torch.equal(load(path), expected)
    assert decoded[0] == list(range(60))
    assert torch.equal(load(path), expected)
    assert len(decoded[0]) == 60
    (entry,) = entries(cache)
    assert torch.equal(load_file(entry)["frames"], expected)
    assert sorted(p.name for p in entry.parent.iterdir()) == [entry.name]
    assert entry.parent.stat().st_mode & 0o777 == 0o700


def test_other_rows_or_another_size_are_another_entry(path, decoded, cache):
    load(path)
    assert shown(load(path, [3, 9])) == [3, 9]
    assert load(path, size=(16, 16)).shape == (60, 16, 16, 3)
    assert len(entries(cache)) == 3
    assert len(decoded[0]) == 122


def test_what_is_written_into_the_frames_stays_in_this_process(path):
    load(path).zero_()
    assert shown(load(path)) == list(range(60))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc on this system")
def test_the_frames_are_mapped_from_the_entry(path, cache):
    for _ in range(2):
        frames = load(path)
        (entry,) = entries(cache)
        assert str(entry) in Path("/proc/self/maps").read_text()
        del frames
        assert str(entry) not in Path("/proc/self/maps").read_text()


def test_frame_times_are_read_once(path, monkeypatch):
    first = open_video(path)
    monkeypatch.setattr(Video, "open", lambda _: pytest.fail("opened again"))
    second = open_video(path)
    assert (second.width, second.height) == (64, 48)
    for name in ("times_s", "pts"):
        kept, read = getattr(second, name), getattr(first, name)
        assert np.array_equal(kept, read)
        assert kept.dtype == read.dtype


def test_a_data_set_of_recordings_is_decoded_once(tmp_path, decoded):
    """Two people, a window of four frames each second of 60 but for two gaps of 5: 400 frames."""
    root = str(aria_folder(aria_folder(tmp_path / "two", "ann", 60), "bob", 60))
    options = Aria(size=SIZE, window=4, step_s=0.2, stride_s=1.0)
    first, count = options.load(root), len(decoded[0])
    second = options.load(root)
    assert count == len(decoded[0]) == 400
    for person in first.clients:
        for part in ("train", "val", "test"):
            a, b = (getattr(f.people[person], part).banks["frames"].rows for f in (first, second))
            assert torch.equal(a, b)


@pytest.mark.parametrize("fault", ["bit", "header", "short", "empty", "half"])
def test_a_damaged_entry_is_decoded_again(path, decoded, cache, capsys, fault):
    """`half` is an unfinished file under the name of a whole one."""
    if fault == "half":
        interrupt(path, decoded, 35)
        (part,) = entries(cache, "part")
        part.replace(part.with_suffix(".safetensors"))
    else:
        load(path)
    (entry,) = entries(cache)
    data = bytearray(entry.read_bytes())
    data[{"bit": 4096 + 33 * FRAME, "header": 30}.get(fault, 0)] ^= 1 if fault != "half" else 0
    entry.write_bytes({"short": data[:-1], "empty": b""}.get(fault, bytes(data)))
    decoded[0].clear()
    assert shown(load(path)) == list(range(60))
    assert len(decoded[0]) == 60
    assert f"decoded video {entry} is damaged: decoding it again" in capsys.readouterr().err
    assert shown(load(path)) == list(range(60))
    assert len(decoded[0]) == 60


def interrupt(path, decoded, row):
    decoded[1].update({"before": row, "with": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        load(path)
    decoded[1].clear()


def test_an_interrupted_decode_goes_on_where_it_stopped(path, decoded, cache):
    """Stopped at frame 35, three blocks of ten are whole: 30 to 59 remain."""
    interrupt(path, decoded, 35)
    assert not entries(cache)
    assert len(entries(cache, "part")) == 1
    decoded[0].clear()
    assert shown(load(path)) == list(range(60))
    assert decoded[0] == list(range(30, 60))
    assert not entries(cache, "part")


def test_an_unfinished_entry_is_trusted_up_to_its_first_damaged_block(path, decoded, cache):
    """Frame 17 lies in the second block, so only the first one counts."""
    interrupt(path, decoded, 45)
    (part,) = entries(cache, "part")
    data = bytearray(part.read_bytes())
    data[4096 + 17 * FRAME] ^= 1
    part.write_bytes(data)
    decoded[0].clear()
    assert shown(load(path)) == list(range(60))
    assert decoded[0] == list(range(10, 60))


def test_several_videos_resume_in_the_middle_of_the_second(path, decoded, tmp_path):
    """24 + 60 frames: stopped at frame 40 of the second, number 64, six blocks are whole."""
    short = write_video(tmp_path / "b.mp4", UNEVEN[:24])
    cuts = [ClipWindow(p, open_video(p), np.arange(n)) for p, n in ((short, 24), (path, 60))]
    decoded[1].update({"before": 40, "with": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        load_clips([cuts], SIZE)
    decoded[0].clear()
    decoded[1].clear()
    (frames,) = load_clips([cuts], SIZE)
    assert shown(frames) == [*range(24), *range(60)]
    assert decoded[0] == list(range(36, 60))


def _slowly(path, tell, pause):
    """Decode in a child; report each frame and take `pause` seconds for it."""
    real = Video.frames

    def frames(self, wanted=None, *size):
        for row, frame in zip(wanted, real(self, wanted, *size), strict=True):
            tell.send(row)
            time.sleep(pause)
            yield frame

    Video.frames = frames
    load(path)
    os._exit(0)


def test_after_kill_9_the_next_process_goes_on(path, decoded):
    """The child is killed while it decodes frame 25 or a little later: two blocks at least."""
    hear, tell = CHILD.Pipe(duplex=False)
    child = CHILD.Process(target=_slowly, args=(path, tell, 0.01))
    child.start()
    while hear.recv() < 25:
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert shown(load(path)) == list(range(60))
    assert decoded[0][0] in (20, 30, 40)
    assert decoded[0] == list(range(decoded[0][0], 60))


def test_who_comes_second_waits_and_decodes_nothing(path, decoded):
    hear, tell = CHILD.Pipe(duplex=False)
    child = CHILD.Process(target=_slowly, args=(path, tell, 0.005))
    child.start()
    hear.recv()
    assert shown(load(path)) == list(range(60))
    child.join()
    assert child.exitcode == 0
    assert not decoded[0]


def test_many_at_once_decode_once(path, decoded, cache):
    with ThreadPoolExecutor(8) as pool:
        for frames in pool.map(lambda _: load(path), range(8)):
            assert shown(frames) == list(range(60))
    assert len(decoded[0]) == 60
    assert len(list((cache / "clips").iterdir())) == 1


def test_what_was_used_longest_ago_makes_room(tmp_path, decoded, cache, monkeypatch):
    """Room for two of three: a is used again after b, so b goes."""
    monkeypatch.setenv("VERGENCE_CACHE_GB", str(2.5 * ENTRY / 1e9))
    a, b, c = (write_video(tmp_path / f"{n}.mp4", UNEVEN) for n in "abc")
    for path in (a, b, a, c):
        load(path)
        time.sleep(0.01)
    assert sum(p.stat().st_size for p in entries(cache)) == 2 * ENTRY
    decoded[0].clear()
    load(a)
    load(c)
    assert not decoded[0]
    load(b)
    assert len(decoded[0]) == 60


def test_entries_in_use_stay_and_the_rest_is_kept_in_memory(
    tmp_path, decoded, cache, monkeypatch, capsys
):
    monkeypatch.setenv("VERGENCE_CACHE_GB", str(1.5 * ENTRY / 1e9))
    a, b = (write_video(tmp_path / f"{n}.mp4", UNEVEN) for n in "ab")
    held = load(a)
    assert shown(load(b)) == list(range(60))
    told = capsys.readouterr().err
    assert f"decoded video is kept in memory, not in {cache / 'clips'}: needs 0.00 GB" in told
    assert "are in use" in told
    assert [p.stat().st_size for p in entries(cache)] == [ENTRY]
    assert shown(held) == list(range(60))
    del held
    load(b)
    assert "in use" not in capsys.readouterr().err
    decoded[0].clear()
    load(b)
    assert not decoded[0]


def test_abandoned_unfinished_entries_are_removed_too(path, decoded, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE_GB", str(1.5 * ENTRY / 1e9))
    interrupt(path, decoded, 35)
    load(write_video(tmp_path / "b.mp4", UNEVEN))
    assert len(list((cache / "clips").iterdir())) == len(entries(cache)) == 1


def test_larger_than_the_limit_or_no_limit_at_all(path, cache, monkeypatch, capsys):
    monkeypatch.setenv("VERGENCE_CACHE_GB", "1e-4")
    assert shown(load(path)) == list(range(60))
    assert "VERGENCE_CACHE_GB allows 0.00 GB" in capsys.readouterr().err
    assert not list((cache / "clips").iterdir())
    monkeypatch.setenv("VERGENCE_CACHE_GB", "0")
    shutil.rmtree(cache)
    assert shown(load(path)) == list(range(60))
    assert not cache.exists()
    assert not capsys.readouterr().err


def test_a_folder_that_cannot_be_used_costs_only_time(path, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "file"))
    assert shown(load(path)) == list(range(60))
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(path, monkeypatch, text):
    monkeypatch.setenv("VERGENCE_CACHE_GB", text)
    with pytest.raises(ConfigError, match=f"VERGENCE_CACHE_GB must be .* got '{text}'"):
        load(path)


def test_the_limit_is_20_gb_by_default(monkeypatch):
    monkeypatch.delenv("VERGENCE_CACHE_GB", raising=False)
    assert limit_bytes() == 20 * 10**9


def test_a_changed_file_is_decoded_again_and_a_moved_one_is_not(path, decoded):
    load(path)
    moved = path.rename(path.with_name("moved.mp4"))
    assert shown(load(moved)) == list(range(60))
    assert len(decoded[0]) == 60
    later = write_video(path.with_name("later.mp4"), np.append(UNEVEN, 7 + np.arange(10) * 0.1))
    later.replace(moved)
    assert shown(load(moved, range(70))) == [*range(60), *range(10)]


def test_a_large_file_is_told_apart_by_any_of_its_parts(tmp_path):
    """3 MiB, one time of change; one byte differs at the head, in the second piece, at the tail.

    Four pieces of 64 KiB, the last at 3080192: the second begins at a third of that, 1026730.
    """
    path, seen = tmp_path / "large", set()
    for at in (None, 0, 1_026_730 + 65_535, (3 << 20) - 1):
        data = bytearray(3 << 20)
        if at is not None:
            data[at] = 1
        twin = tmp_path / f"large{at}"
        twin.write_bytes(data)
        os.utime(twin, ns=(10**18, 10**18))
        seen.add(identity(twin))
    assert len(seen) == 4
    with pytest.raises(DataError, match=r"large cannot be read"):
        identity(path)


def test_a_file_that_changes_while_it_is_read_is_refused(path, cache, monkeypatch):
    real = Video.frames

    def frames(self, wanted=None, *size):
        yield from real(self, wanted, *size)
        os.utime(path, ns=(10**18, 10**18))

    monkeypatch.setattr(Video, "frames", frames)
    with pytest.raises(DataError, match=r"a\.mp4 changed while it was read"):
        load(path)
    assert not list((cache / "clips").iterdir())


def test_a_video_that_cannot_be_decoded_leaves_nothing(path, decoded, cache):
    decoded[1].update({"before": 35, "with": DataError("broken")})
    with pytest.raises(DataError, match="broken"):
        load(path)
    assert not list((cache / "clips").iterdir())


def test_an_entry_is_locked_for_removal_only_if_nobody_uses_it(tmp_path):
    entry, part = tmp_path / "a.safetensors", tmp_path / "b.part"
    entry.touch()
    part.touch()
    with ExitStack() as locks:
        assert clip_cache._lock_if_unused(entry, locks)
        assert clip_cache._lock_if_unused(part, locks)
        assert part.with_suffix(".lock").is_file()
    assert entry.is_file()
    assert not part.with_suffix(".lock").exists()
    with entry.open("rb") as mapped, part.with_suffix(".lock").open("ab") as making:
        lock_shared(mapped)
        lock(making)
        with ExitStack() as locks:
            assert not clip_cache._lock_if_unused(entry, locks)
            assert not clip_cache._lock_if_unused(part, locks)
        assert part.with_suffix(".lock").is_file()


def test_an_entry_that_is_gone_or_was_replaced_is_not_locked(tmp_path, monkeypatch):
    entry = tmp_path / "a.safetensors"
    with ExitStack() as locks:
        assert not clip_cache._lock_if_unused(entry, locks)
        assert not clip_cache._lock_if_unused(tmp_path / "no" / "a.part", locks)
        entry.touch()
        real = clip_cache.try_lock_shared_by_none

        def replaced(file):
            (tmp_path / "other").touch()
            (tmp_path / "other").replace(entry)
            return real(file)

        monkeypatch.setattr(clip_cache, "try_lock_shared_by_none", replaced)
        assert not clip_cache._lock_if_unused(entry, locks)
        monkeypatch.setattr(
            clip_cache, "try_lock_shared_by_none", lambda file: entry.unlink() or real(file)
        )
        assert not clip_cache._lock_if_unused(entry, locks)


def test_a_lock_on_a_file_that_was_removed_is_taken_again(tmp_path, monkeypatch):
    path, taken = tmp_path / "a.lock", []

    def take(file):
        taken.append(file)
        lock(file)
        if len(taken) < 3:
            path.unlink()

    monkeypatch.setattr(clip_cache, "lock", take)
    with clip_cache._exclusive_lock(path):
        assert [file.closed for file in taken] == [True, True, False]
        assert path.is_file()
    assert not path.exists()
    assert taken[2].closed


@pytest.mark.parametrize(("frames", "blocks"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2)])
def test_an_entry_is_a_page_of_header_and_its_frames_in_blocks(frames, blocks):
    layout = clip_cache._StoreLayout("key", (frames, 48, 64, 3))
    assert (layout.frame_bytes, layout.per_block, layout.blocks) == (FRAME, 10, blocks)
    head = layout.header(["a" * 64] * blocks)
    assert layout.offset == len(head) == 4096
    assert layout.bytes == 4096 + frames * FRAME
    assert int.from_bytes(head[:8], "little") == 4096 - 8
    assert layout.digests(head) == ["a" * 64] * blocks
    assert layout.digests(head[:-1] + b"}") is None
    assert clip_cache._StoreLayout("kez", (frames, 48, 64, 3)).digests(head) is None
    for damaged in (b"", head[:8] + b"[]", head[:8] + b'{"__metadata__": 1}'):
        assert layout.digests(damaged) is None


def test_a_frame_larger_than_a_block_is_one_of_its_own(monkeypatch):
    monkeypatch.setattr(clip_cache, "BLOCK_BYTES", FRAME - 1)
    layout = clip_cache._StoreLayout("key", (3, 48, 64, 3))
    assert (layout.per_block, layout.blocks) == (1, 3)
    monkeypatch.setattr(clip_cache, "PAGE", 8)
    assert layout.offset % 8 == 0
    assert layout.offset - len(json.dumps({"key": "key"})) < 700


def test_files_up_to_four_pieces_are_digested_whole(tmp_path):
    """A byte that lies in no piece of a larger file counts in one of 256 KiB, and not in more."""
    seen = {}
    for size in (4 << 16, (4 << 16) + 8):
        for at in (0, 1 << 16, size - 1):
            path = tmp_path / f"{size} {at}"
            data = bytearray(size)
            data[at] = 1
            path.write_bytes(data)
            os.utime(path, ns=(10**18, 10**18))
            seen[size, at] = identity(path)
    assert len(set(seen.values())) == 6
    assert seen[4 << 16, 0].split()[:2] == [str(4 << 16), str(10**18)]
    whole = (tmp_path / f"{4 << 16} 0").read_bytes()
    assert seen[4 << 16, 0].split()[2] == hashlib.sha256(whole).hexdigest()
    large = np.random.default_rng(0).bytes((4 << 16) + 8)
    path.write_bytes(large)
    last = len(large) - (1 << 16)
    four = b"".join(large[last * k // 3 :][: 1 << 16] for k in range(4))
    assert identity(path).split()[2] == hashlib.sha256(four).hexdigest()
