"""The queues that a host's readers serve, as lines of text below the loaders of `stoker top`. Pure."""

from collections.abc import Sequence

from stoker.keeper.view import KeeperView, MoveView, PeerView
from stoker.report.top import clip, duration, fit, number, printable, size

_HEAD = ("QUEUED", "UNREAD", "READERS", "AT WORK", "READ AHEAD", "STAGED", "MS A FILE")
_WIDTHS = (6, 6, 7, 7, 10, 8, 9)
_NAME = 16
_MOVES = 2


def queue_lines(keepers: Sequence[KeeperView], width: int, now: float) -> list[str]:
    """A line for each queue, and the latest moves."""
    lines: list[str] = []
    for keeper in keepers:
        if not keeper.queues:
            continue
        titles = [title.rjust(width) for title, width in zip(_HEAD, _WIDTHS, strict=True)]
        lines += ["", clip("  ".join([fit("READING FOR", _NAME), *titles]), width)]
        for queue in sorted(keeper.queues, key=lambda queue: (queue.rank is None, queue.rank, queue.pid, queue.loader)):
            name = f"pid {queue.pid}" if queue.rank is None else f"rank {queue.rank}, {queue.pid}"
            cells = [
                number(queue.queued),
                number(queue.unread),
                str(queue.readers) if queue.readers else "-",
                str(queue.busy),
                number(queue.brought),
                size(queue.staged_bytes),
                f"{queue.sample_ms:.3g}",
            ]
            shown = [cell.rjust(one) for cell, one in zip(cells, _WIDTHS, strict=True)]
            lines.append(clip("  ".join([fit(name, _NAME), *shown]), width))
        free = keeper.readers - sum(queue.readers for queue in keeper.queues)
        moved = f"; {keeper.moved} moves" if keeper.moved else ""
        lines.append(clip(f"  {keeper.readers} readers (pid {keeper.pid}), {free} for all queues{moved}", width))
        lines += [clip(f"  {printable(_words(move, now))}", width) for move in keeper.moves[-_MOVES:]]
        lines += [clip(f"  {printable(_peer_words(peer))}", width) for peer in keeper.peers]
        lines += [clip(f"  {printable(f'peers {name}: {why}')}", width) for name, _, why in keeper.troubles]
    return lines


def _peer_words(peer: PeerView) -> str:
    state = "late, not asked now" if peer.is_suspect else peer.trouble or "asked before storage"
    late = f", {peer.late} answers late" if peer.late else ""
    return f"host {peer.name}: holds {number(peer.held)}, gave {number(peer.given)} ({size(peer.bytes)}){late}; {state}"


def _words(move: MoveView, now: float) -> str:
    whence, where = move.source or "all", move.target or "all"
    return f"{duration(max(0.0, now - move.at))} ago {move.count} from {whence} to {where}: {move.why}"
