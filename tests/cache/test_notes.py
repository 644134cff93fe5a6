"""What a batch opens is noted once for its index, by any number of processes; half a line spoils one more."""

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

from stoker.cache import notes
from stoker.cache.notes import NotedIds, Notes, noted
from stoker.cache.staging import Staging, active
from stoker.keeper.opens import Opens


def prepare(made: Notes, ids: list[int], prefix: str = "/data") -> None:
    for index in NotedIds(ids, made):
        notes.opened(f"{prefix}/{index}.jpg")
        notes.opened(f"{prefix}/{index}.jpg")
        notes.opened(f"{prefix}/{index}.mask")
    notes.opened("/data/after")  # of collating: nobody's


def opens_of(made: Notes, samples: int) -> Opens:
    opens = Opens(samples)
    opens.add(os.dup(made.log.descriptor))
    while opens.learn():
        pass
    return opens


def test_files_are_noted_for_their_index_once() -> None:
    made = Notes(10, is_listed=False)
    prepare(made, [3, 7])
    length = os.fstat(made.log.descriptor).st_size
    prepare(made, [3, 7], "/other")
    assert os.fstat(made.log.descriptor).st_size == length
    opens = opens_of(made, 10)
    assert opens.paths(3) == [b"/data/3.jpg", b"/data/3.mask"]
    assert [index for index in range(12) if opens.knows(index)] == [3, 7]
    made.settle()
    assert made.is_open
    prepare(made, list(range(10)))
    made.settle()
    assert not made.is_open


def test_a_sample_that_fails_is_not_noted() -> None:
    made = Notes(10, is_listed=False)
    noting = iter(NotedIds([1, 2], made))
    next(noting)
    notes.opened("/data/1")
    next(noting)
    notes.opened("/data/2")
    del noting
    opens = opens_of(made, 10)
    assert opens.knows(1)
    assert not opens.knows(2)


def test_of_a_dataset_that_lists_its_files_only_samples_of_several_are_noted() -> None:
    made = Notes(4, is_listed=True)
    for index in NotedIds([0, 1], made):
        notes.opened(f"/data/{index}")
    assert not made.has_lines
    prepare(made, [2])
    assert made.has_lines


def test_the_indices_are_a_list_to_others_and_noted_only_where_it_is_wanted() -> None:
    made = Notes(4, is_listed=False)
    ids: Any = [2, 0, 1]
    assert noted(ids) is ids
    with active(Staging(0, notes=made)):
        found = noted(ids)
        assert type(found) is NotedIds
        assert found == ids
        assert type(found[1:]) is NotedIds
        assert type(pickle.loads(pickle.dumps(found))) is list
        made.stop()
        assert noted(ids) is ids


def _write(made: Notes, first: int) -> None:
    for start in range(first, first + 500, 5):
        prepare(made, list(range(start, start + 5)))


def test_many_processes_note_at_once() -> None:
    made = Notes(2000, is_listed=False)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(made, 500 * number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    opens = opens_of(made, 2000)
    for index in range(2000):
        assert opens.paths(index) == [b"/data/%d.jpg" % index, b"/data/%d.mask" % index]


def test_half_a_line_spoils_one_more(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(
        log, b"1\0/data/1\n2\0/da" + b"3\0/data/3\n" + b"99999\0/far\nx\0/no\n4\0/data/" + b"4" * 9000 + b"\n5\0/data/5"
    )
    opens = Opens(10)
    opens.add(log)
    assert not opens.learn()
    assert [index for index in range(10) if opens.knows(index)] == [1, 2, 4]
    assert opens.paths(4) == [b"/data/" + b"4" * 9000]
    os.pwrite(log, b"\n", os.fstat(log).st_size)  # the writer goes on
    opens.learn()
    assert opens.paths(5) == [b"/data/5"]


def test_logs_of_loaders_that_have_gone_keep_few_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    opens = Opens(100)
    before, first = descriptors(), Notes(100, is_listed=False)
    prepare(first, [1, 2])
    opens.let_go(opens.add(os.dup(first.log.descriptor)))
    assert opens.paths(1) == [b"/data/1.jpg", b"/data/1.mask"]  # nobody else has said it
    for number in range(40):
        made = Notes(100, is_listed=False)
        prepare(made, [1, 2, 3 + number])
        opens.let_go(opens.add(os.dup(made.log.descriptor)))
        made.log.close()
    assert descriptors() - before <= 12
    assert opens.paths(2) == [b"/data/2.jpg", b"/data/2.mask"]
    assert opens.paths(42) == [b"/data/42.jpg", b"/data/42.mask"]
    assert not opens.knows(3)  # said long ago, by one that has gone
