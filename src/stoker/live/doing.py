"""What a process is busy with, in words, by what the kernel said of it at two moments. Pure."""

from stoker.host.process import Process

_ON_SOCKETS = ("sk_wait", "wait_woken", "tcp_", "inet_", "unix_stream", "skb_wait")
_ON_STORAGE = ("folio_wait", "wait_on_page", "io_schedule", "nfs", "fuse", "rpc_wait", "request_wait", "blk_")
STOPPED = "stopped by a signal or a debugger"
_BUSY = 0.3
"""From this share of a core on, a process computes."""
_READS_BYTES_PER_S = 100_000


def doing(before: Process | None, after: Process | None, seconds: float) -> str:
    """What a process is busy with between two moments, in words that begin with prep, fetch, or what else it is."""
    if after is None or after.is_dead:
        return "dead"
    if after.is_stopped:
        return STOPPED
    if after.state == "D":
        return "fetch: waits for storage"
    if before is not None and before.started == after.started and seconds > 0:
        busy = (after.cpu_s - before.cpu_s) / seconds
        rate = (after.read_bytes - before.read_bytes) / seconds
        if busy >= _BUSY:
            return f"prep: {min(busy, 99):.0%} of a core".replace("%", " %")
        if rate >= _READS_BYTES_PER_S:
            return f"fetch: reads {rate / 1e6:.1f} MB/s"
    if after.state == "R":
        return "prep: runs"
    if after.sleeps_in.startswith(_ON_SOCKETS):
        return "fetch: waits for a socket"
    if after.sleeps_in.startswith(_ON_STORAGE):
        return "fetch: waits for storage"
    return f"asleep in {after.sleeps_in}" if after.sleeps_in else "asleep"
