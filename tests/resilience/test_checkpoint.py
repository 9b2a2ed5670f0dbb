"""Checkpoints: what is saved by some ranks comes back on any others, and damage never does."""

import json
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_world import ThreadGroup, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.resilience.checkpoint import Checkpointer, checkpoints
from atoll.resilience.checkpoint_layout import Region, Shard
from atoll.resilience.checkpoint_store import CheckpointError, Disk

STATE = {
    "weights": np.arange(35.0).reshape(5, 7),
    "bias": np.arange(5, dtype=np.float32),
    "half": np.arange(9, dtype=np.float32).astype(ml_dtypes.bfloat16),
    "count": np.array(3),
    "mask": np.array([[True, False]]),
    "empty": np.zeros((0, 4)),
    "when": np.array(["2024-02-29"], "M8[s]"),
    "big endian": np.arange(3, dtype=">i8"),
}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def saved(directory: Path, *steps: int, world_size: int = 1, keep_last: int | None = None) -> list[Path]:
    """Checkpoints of ``STATE`` plus its step; their folders, oldest first."""

    def save(group: ThreadGroup) -> None:
        with Checkpointer(directory, group, keep_last=keep_last) as checkpointer:
            for step in steps:
                checkpointer.save(step, {**STATE, "step": np.full(20, step)}, {"step": step})

    assert on_ranks(world_size, save) == [None] * world_size
    return [listed.path for listed in reversed(checkpoints(directory))]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_what_any_ranks_save_any_other_number_of_ranks_restores(tmp_path: Path, world_size: int, readers: int) -> None:
    saved(tmp_path, 4, 9, world_size=world_size)

    def restore(group: ThreadGroup):
        return Checkpointer(tmp_path, group).restore()

    for restored in on_ranks(readers, restore):
        assert (restored.step, restored.world_size, restored.extra) == (9, world_size, {"step": 9})
        assert same(restored.arrays, {**STATE, "step": np.full(20, 9)})
        assert restored.refused == ()


def test_each_rank_writes_its_part_once_and_no_more(tmp_path: Path) -> None:
    (folder,) = saved(tmp_path, 1, world_size=4)
    sizes = [os.path.getsize(folder / f"{rank:05d}.shard") for rank in range(4)]
    total = sum(np.asarray(array).nbytes for array in STATE.values()) + 20 * 8
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 8, "even to one element"


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region]]:
    """A shape, and boxes that tile it: cut again and again along drawn axes."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [Region.whole(shape)]
    for _ in range(draw(st.integers(0, 5))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[axis]))
        first, second = list(box.shape), list(box.shape)
        first[axis], second[axis] = at, box.shape[axis] - at
        start = list(box.start)
        start[axis] += at
        boxes += [Region(box.start, tuple(first)), Region(tuple(start), tuple(second))]
    return shape, boxes


@given(tilings(), st.data())
@settings(max_examples=40)
def test_any_box_of_any_tiling_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tiling: tuple[tuple[int, ...], list[Region]], data: st.DataObject
) -> None:
    shape, boxes = tiling
    directory = tmp_path_factory.mktemp("tiles")
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    replicated = whole * 2

    def save(group: ThreadGroup) -> None:
        box = boxes[group.rank % len(boxes)]  # where there are more ranks than boxes, some hold the same
        part = np.asfortranarray(whole[box.slices((0,) * len(shape))])
        with Checkpointer(directory, group) as checkpointer:
            checkpointer.save(0, {"tiled": Shard(part, box.start, shape), "plain": replicated})

    ranks = len(boxes) + data.draw(st.integers(0, 2))
    assert on_ranks(ranks, save) == [None] * ranks
    start = tuple(data.draw(st.integers(0, length)) for length in shape)
    size = tuple(data.draw(st.integers(0, n - a)) for a, n in zip(start, shape, strict=True))
    region = Region(start, size)
    restored = Checkpointer(directory).restore({"tiled": region, "plain": region})
    assert restored is not None
    expected = whole[region.slices((0,) * len(shape))]
    assert same(restored.arrays, {"tiled": expected, "plain": expected * 2})
    shutil.rmtree(directory)


def test_parts_by_axis_are_those_of_array_split() -> None:
    whole = np.arange(70).reshape(7, 10)
    for axis in (0, 1, -1):
        parts = [whole[Region.part(whole.shape, rank, 4, axis).slices((0, 0))] for rank in range(4)]
        expected = np.array_split(whole, 4, axis)
        assert all(np.array_equal(one, other) for one, other in zip(parts, expected, strict=True))


def test_pipeline_stages_hold_arrays_of_their_own(tmp_path: Path) -> None:
    def save(group: ThreadGroup) -> None:
        stage = np.full((2, 3), group.rank)
        with Checkpointer(tmp_path, group) as checkpointer:
            checkpointer.save(1, {f"stage{group.rank}": Shard(stage, (0, 0), stage.shape)})

    assert on_ranks(3, save) == [None] * 3
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None
    assert same(restored.arrays, {f"stage{rank}": np.full((2, 3), rank) for rank in range(3)})


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([((0,), 4), ((3,), 3)], r"shards of ranks 0 and 1 overlap: \[0:4\] and \[3:6\]"),
        ([((0,), 3), ((4,), 2)], r"hold 5 of the 6 elements"),
        ([((0,), 0), ((0,), 0)], r"no rank holds any of its 6 elements"),
    ],
)
def test_shards_that_do_not_tile_are_refused_on_every_rank(tmp_path: Path, boxes, words: str) -> None:
    def save(group: ThreadGroup) -> None:
        start, size = boxes[group.rank]
        Checkpointer(tmp_path, group).save(1, {"x": Shard(np.zeros(size), start, (6,))})

    outcomes = on_ranks(2, save)
    assert all(isinstance(outcome, SpecError) for outcome in outcomes)
    for outcome in outcomes:
        with pytest.raises(SpecError, match=words):
            raise outcome


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c, r: c.save(r, STATE), "another step: 0 and 1"),
        (lambda c, r: c.save(1, STATE, {"r": r}), "another extra"),
        (lambda c, r: c.save(1, {"x": np.zeros(3 + r)}), r"'x' differs: rank 0 has a plain array of shape \(3,\)"),
        (lambda c, r: c.save(1, {"x": np.zeros(3, "f4" if r else "f8")}), "dtype float64|dtype <f8"),
        (lambda c, r: c.save(1, {"x": 1} if r else {"y": 1}), "missing on rank"),
        (lambda c, r: c.save(1, {"x": np.array([{}])} if r else {"x": 1}), "rank 1.*cannot be sent|object"),
        (lambda c, r: c.save(1, STATE, {"x": (1,)} if r else None), "rank 1: extra: expected"),
        (lambda c, r: c.save(1, STATE, {"x": float("nan")} if r else None), "rank 1: extra: expected"),
        (lambda c, r: c.save(-1 if r else 1, STATE), "rank 1: step: expected"),
        (lambda c, r: c.save(1, {"x": np.zeros(2, "i4,f4")}), "cannot hold dtype"),
        (lambda c, r: c.save(1, {"": 1}), "names of 1 to"),
        (lambda c, r: c.restore({"nothing": None}), "no array 'nothing': it has"),
        (lambda c, r: c.restore({"bias": Region((3,), (3,))}), r"not inside 'bias' of shape \(5,\)"),
        (lambda c, r: c.restore(step=8), "no complete checkpoint of step 8 in .*: got 7"),
    ],
)
def test_what_is_wrong_on_one_rank_is_an_error_on_all(tmp_path: Path, call, words: str) -> None:
    saved(tmp_path, 7)
    outcomes = on_ranks(2, lambda group: call(Checkpointer(tmp_path, group), group.rank))
    for outcome in outcomes:
        with pytest.raises(SpecError, match=words):
            raise outcome
    assert [listed.step for listed in checkpoints(tmp_path)] == [7], "nothing was begun"


def test_the_state_may_change_as_soon_as_save_returns(tmp_path: Path) -> None:
    """The thread is held until the array has changed: what is on disk is the state as it was."""
    import threading

    changed = threading.Event()

    class Held(Disk):
        def write(self, path: Path, *parts: bytes | memoryview) -> None:
            assert changed.wait(60)
            super().write(path, *parts)

    array = np.arange(1000)
    with Checkpointer(tmp_path, disk=Held()) as checkpointer:
        checkpointer.save(1, {"x": array})
        array[:] = -1
        changed.set()
        checkpointer.save(2, {"x": array})
    checkpointer = Checkpointer(tmp_path)
    for step, expected in ((1, np.arange(1000)), (2, np.full(1000, -1))):
        restored = checkpointer.restore(step=step)
        assert restored is not None
        assert np.array_equal(restored.arrays["x"], expected)


def test_the_newest_k_are_kept_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "00000001-step-5-notes").mkdir()
    (tmp_path / "README").write_text("mine")
    first = saved(tmp_path, *range(3), world_size=2, keep_last=2)
    assert [listed.step for listed in checkpoints(tmp_path)] == [2, 1]
    (first[0] / "notes.txt").write_text("mine")
    saved(tmp_path, 3, 4, keep_last=2)
    assert [listed.step for listed in checkpoints(tmp_path, verify=True)] == [4, 3]
    assert (first[0] / "notes.txt").read_text() == "mine"
    assert not (first[0] / "manifest").exists()
    assert not first[1].exists()
    assert (tmp_path / "README").exists()
    assert (tmp_path / "00000001-step-5-notes").exists()


def test_going_back_to_an_older_step_goes_on_from_there(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30, keep_last=3)
    saved(tmp_path, 11, keep_last=3)
    assert [listed.step for listed in checkpoints(tmp_path)] == [11, 30, 20]
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None
    assert restored.step == 11


def test_without_any_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Checkpointer(tmp_path / "new" / "folder").restore() is None
    assert checkpoints(tmp_path / "nowhere") == []
    with pytest.raises(SpecError, match="keep_last"):
        Checkpointer(tmp_path, keep_last=0)


def damage_kinds(path: Path) -> list[str]:
    return ["truncated", "longer", "gone", "a bit"] if path.stat().st_size else ["longer", "gone"]


def damage(path: Path, kind: str, bit: int) -> None:
    data = bytearray(path.read_bytes())
    if kind == "gone":
        path.unlink()
        return
    if kind == "truncated":
        del data[bit % len(data) :]
    elif kind == "longer":
        data += b"\0"
    else:
        data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


@given(st.data())
@settings(max_examples=60)
def test_any_damage_to_any_file_is_refused_by_name_and_the_one_before_is_used(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    folders = saved(directory, 1, 2, world_size=2)
    victim = folders[1] / data.draw(st.sampled_from(["00000.shard", "00001.shard", "manifest"]))
    kind = data.draw(st.sampled_from(damage_kinds(victim)))
    damage(victim, kind, data.draw(st.integers(0, 1 << 14)))

    outcomes = on_ranks(2, lambda group: Checkpointer(directory, group).restore())
    for restored in outcomes:
        assert (restored.step, restored.extra) == (1, {"step": 1})
        assert same(restored.arrays, {**STATE, "step": np.full(20, 1)})
        if victim.exists() or victim.name != "manifest":
            (reason,) = restored.refused
            assert str(victim) in reason
        else:
            assert restored.refused == (), "without a manifest it never was complete"
    shutil.rmtree(directory)


def test_damage_that_one_rank_alone_meets_is_everyones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 1 needs only what is damaged, rank 0 only what is whole: both go back to the same step."""
    folders = saved(tmp_path, 1, 2, world_size=2)
    damage(folders[1] / "00001.shard", "a bit", 77)
    outcomes = on_ranks(
        2, lambda group: Checkpointer(tmp_path, group).restore({"bias" if group.rank == 0 else "weights": None})
    )
    assert [restored.step for restored in outcomes] == [1, 1]
    assert "rank 1: " in outcomes[0].refused[0]
    assert "damaged" in outcomes[0].refused[0]
    assert "checkpoint of step 2 refused" in caplog.text
    assert [(listed.step, bool(listed.damage)) for listed in checkpoints(tmp_path, verify=True)] == [
        (2, True),
        (1, False),
    ]


def test_when_all_are_damaged_the_error_names_each(tmp_path: Path) -> None:
    folders = saved(tmp_path, 1, 2)
    damage(folders[0] / "manifest", "truncated", 100)
    damage(folders[1] / "00000.shard", "truncated", 100)
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints") as raised:
        Checkpointer(tmp_path).restore()
    assert f"{folders[0] / 'manifest'}: torn" in str(raised.value)
    assert f"{folders[1] / '00000.shard'}: torn: expected" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["arrays"][0].update(shape=[1 << 40]), "impossible|needs"),
        (lambda m: m["arrays"][0].update(dtype="object"), "unknown dtype"),
        (lambda m: m["arrays"][0].update(dtype="O"), "unknown dtype"),
        (lambda m: m["arrays"][0].update(dtype="finfo"), "unknown dtype"),
        (lambda m: m["receipts"][0].update(rank=1), "one receipt of each of 1 ranks"),
        (lambda m: m["receipts"][0]["pieces"][0].update(offset=-8), "impossible"),
        (lambda m: m["receipts"][0]["pieces"][0].update(num_bytes=8), "another size"),
        (lambda m: m["receipts"][0]["pieces"].pop(), "add up"),
        (lambda m: m["receipts"][0]["pieces"][0]["piece"].update(start=[-1]), "impossible"),
        (lambda m: m.update(extra="["), "not JSON"),
        (lambda m: m.update(step="x"), "Expected `int`"),
        (lambda m: m.update(other=1), "unknown field"),
    ],
)
def test_a_forged_manifest_is_refused_without_harm(tmp_path: Path, change, words: str) -> None:
    """Its seal is right, what it says is not."""
    from atoll.resilience.checkpoint_store import digest

    (folder,) = saved(tmp_path, 1)
    manifest = json.loads((folder / "manifest").read_bytes().partition(b"\n")[2])
    change(manifest)
    body = json.dumps(manifest).encode()
    (folder / "manifest").write_bytes(
        b"atoll checkpoint 1 bytes=%d blake2b=%s\n" % (len(body), digest(body).encode()) + body
    )
    with pytest.raises(CheckpointError, match=words):
        Checkpointer(tmp_path).restore()


def test_a_disk_that_is_full_on_one_rank_fails_the_save_on_all_and_the_next_goes_on(tmp_path: Path) -> None:
    class Full(Disk):
        full = True

        def write(self, path: Path, *parts: bytes | memoryview) -> None:
            if self.full:
                raise OSError(28, "No space left on device", str(path))
            super().write(path, *parts)

    disk = Full()

    def save(group: ThreadGroup) -> list[str]:
        checkpointer = Checkpointer(tmp_path, group, disk=disk if group.rank == 1 else None)
        checkpointer.save(1, STATE)
        with pytest.raises(CheckpointError) as raised:
            checkpointer.wait()
        disk.full = False
        checkpointer.save(2, STATE)
        checkpointer.wait()
        return [str(raised.value)]

    for (words,) in on_ranks(2, save):
        assert words.startswith("step 1 was not saved: rank 1: ")
        assert words.endswith("00001.shard: No space left on device")
    assert [listed.step for listed in checkpoints(tmp_path)] == [2]
    assert len(os.listdir(tmp_path)) == 1, "what the failed save left is deleted"


def test_directories_that_are_not_shared_are_found_at_once(tmp_path: Path) -> None:
    def save(group: ThreadGroup) -> None:
        with Checkpointer(tmp_path / str(group.rank), group) as checkpointer:
            checkpointer.save(1, STATE)

    for outcome in on_ranks(2, save):
        assert isinstance(outcome, CheckpointError)
        assert "on a file system that all ranks share?" in str(outcome)


def test_a_directory_that_cannot_be_made_is_named_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for outcome in on_ranks(2, lambda group: Checkpointer(tmp_path / ("file" if group.rank else "fine"), group)):
        assert isinstance(outcome, CheckpointError)
        assert "rank 1: " in str(outcome)
        assert "File exists" in str(outcome)
