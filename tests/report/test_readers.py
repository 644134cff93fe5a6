"""The queues of a host's readers as people see them."""

from stoker.keeper.view import KeeperView, MoveView, QueueView
from stoker.report.readers import queue_lines

SLOW = QueueView(28110, 0, 0, 5, 3, 7, 5, 421, 8_420_000, 1_100_000, 50.3, 40.1)
FAST = QueueView(28111, 1, 0, 5, 6, 0, 3, 406, 8_120_000, 0, 2.27, 40.0)


def test_queues_and_moves() -> None:
    keeper = KeeperView(28123, 8, 7, (FAST, SLOW), (MoveView(100.0, None, "rank 0", 7, "late: \x1b[31mqueue 0"),))
    lines = queue_lines([keeper], 100, 103.1)
    assert lines[2].split() == ["rank", "0,", "28110", "5", "3", "7", "5", "421", "1.1M", "50.3"]
    assert lines[3].split() == ["rank", "1,", "28111", "5", "6", "-", "3", "406", "0", "2.27"]
    assert lines[4].strip() == "8 readers (pid 28123), 1 for all queues; 7 moves"
    assert lines[5].strip() == "3.1 s ago 7 from all to rank 0: late: \\x1b[31mqueue 0"
    assert all(len(line) <= 60 for line in queue_lines([keeper], 60, 103.1))


def test_nothing_where_nothing_is_read() -> None:
    assert queue_lines([KeeperView(1, 16, 0, (), ())], 100, 0.0) == []
