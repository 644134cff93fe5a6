"""What `stoker top` shows fits the terminal, and does nothing to it."""

import re
from dataclasses import replace

import pytest
from tests.live.rows import FOR_ROOM, LATE, group_row, row_of, seen_at

from stoker.live.watch import measure
from stoker.report.top import Style, clip, table


@pytest.mark.parametrize("width", [20, 33, 40, 60, 80, 100, 130, 250])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    stalled = measure(None, (300.0, seen_at(200.0, 10, asked_at=200.1, late_pid=99)))
    rows = [row_of(script="/a/" + "训练" * 20 + ".py"), row_of(script="t" * 200), stalled]
    rows = [replace(row, history=tuple(map(float, range(60)))) for row in rows]
    for line in [line for height in (None, 4) for line in table(rows, Style(width, height))]:
        assert clip(line, width) == line


def test_nobody_is_said_in_whole_words_in_a_narrow_terminal() -> None:
    lines = table([], Style(40, None))
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).endswith("under `stoker run` or use stoker.DataLoader")
    assert len(table([], Style(40, 2))) == 2


def test_the_stalled_come_first_when_not_all_fit() -> None:
    stalled = measure(None, (300.0, seen_at(200.0, 10, asked_at=200.1)))
    lines = table([*[row_of(script=f"{number}.py") for number in range(9)], stalled], Style(120, 6))
    assert len(lines) <= 6
    assert any("waiting 100 s" in line for line in lines)
    assert lines[-1].startswith("... and ")


def test_text_from_outside_is_harmless() -> None:
    text = "\n".join(table([row_of(script="a\n\x1b[2J\u202e'\".py", dataset="D\rE")], Style(150)))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\u202e" not in text
    assert text.count("\n") == 1
    assert "a\\n\\x1b[2J\\u202e'\".py D\\rE" in text


@pytest.mark.parametrize("width", [20, 40, 80, 120, 250])
def test_groups_fit_the_terminal(width: int) -> None:
    rows = [group_row(LATE, waiting_s=5.0, waits=FOR_ROOM, name=name) for name in ("search-7", "n" * 64)]
    for height in (None, 5, 12):
        lines = table(rows, Style(width, height))
        assert all(clip(line, width) == line for line in lines)
        assert height is None or len(lines) <= height
        assert "\x1b" not in "".join(lines)
    if width >= 80:
        text = "\n".join(table(rows[:1], Style(width)))
        assert re.search(r"GROUP +MEMBERS +WORKERS +PREPARED +REPEATED +TAKEN OVER +STAGING\n", text)
        assert re.search(r"\nsearch-7 +2 +2 +1,234 +5 +6 +1.5M/2G\n", text)
        assert "last is late\\x1b.py (pid 4194304), 7 batches behind" in text


def test_what_other_hosts_prepare_is_shown_where_they_may() -> None:
    before = seen_at(200.0, 10)
    after = seen_at(201.0, 20, remote=60, remote_bytes=3_000_000, remote_ratio=0.8, remote_workers=3)
    row = measure((200.1, before), (201.1, after))
    assert "REMOTE" not in table([row_of()], Style(160))[0]
    head, line, *_ = table([row], Style(160))
    assert "REMOTE" in head and "75 % 3w 3MB/s" in line


def test_training_is_told_from_validation() -> None:
    rows = [measure(None, (200.1, seen_at(200.0, 10, role=role))) for role in ("train", "eval", "")]
    head, *lines = table(rows, Style(160))
    at = head.index("FOR") - 2
    assert [line[at : at + 5].strip() for line in lines if "Pictures" in line] == ["train", "eval", "-"]


def test_training_is_told_from_validation_on_a_narrow_terminal() -> None:
    rows = [measure(None, (200.1, seen_at(200.0, 10, role=role))) for role in ("train", "eval")]
    head, *lines = table(rows, Style(56))
    assert head.split() == ["LOADER", "FOR", "SAMPLES/S", "WAITING"]
    assert [line.split()[-4] for line in lines if "%" in line] == ["train", "eval"]


def test_groups_of_one_name_are_told_apart() -> None:
    one = group_row()
    other = replace(one, seen=replace(one.seen, role="eval", facts=replace(one.seen.facts, stream="cd34")))
    last = replace(one, seen=replace(one.seen, facts=replace(one.seen.facts, stream="ef56")))
    text = "\n".join(table([one, other, last], Style(200)))
    for name in ("search-7 Pictures ab12", "search-7 eval", "search-7 Pictures ef56"):
        assert text.count(name) >= 1
    assert re.search(r"\nsearch-7 eval +1 ", text)  # in the lines of groups
    assert re.search(r"\nsearch-7 +1 ", "\n".join(table([one], Style(200))))
