"""What do workers on another host add? Two real hosts (see `hosts`), each with a part of this machine's cores.

Each host prepares JPEG pictures as fast as it can, for itself, both at the same time: on a machine whose cores share what
they have (two threads of one core, say) each is slower then. Then the first trains, and the second one's workers help it.
The ratio is what that reaches, in parts of the sum before; `remote` is the part of all samples
that the second host has prepared. With --loop the training loop takes no more than so many pictures a second. How much is
sent away is decided by measuring, or said by --ratio.

    sudo python benchmarks/offload.py [--here 0.45] [--there 0.45] [--loop 100] [--ratio 0.5] [--link 1000] [--rounds 3]
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PORT = 7100


def be_a_trainer(asked: dict[str, Any]) -> None:
    """Train for a while, and print how many samples a second that were."""
    import torch

    import stoker
    import workloads

    torch.set_num_threads(1)
    plan = stoker.Plan(offload_ratio=asked["ratio"])
    offload = f"tcp://{asked['address']}:{PORT}" if asked["address"] else None
    loader = stoker.DataLoader(
        workloads.Jpegs(100_000, bank=64),
        32,
        num_workers=asked["workers"],
        prefetch_factor=4,
        seed=1,
        offload=offload,
        plan=plan,
    )
    step_s = 32 / asked["loop"] if asked["loop"] else 0.0
    began = remote_before = samples = 0.0
    due = time.perf_counter()
    for batch in loader:
        at = time.perf_counter()
        if offload is not None and not loader.stats().remote and at - due < 60:
            continue  # until the others have come
        if not began:
            settled = at + asked["settle"]
            began = due = at
        elif settled and at > settled:
            settled, began, samples, remote_before = 0.0, at, 0, loader.stats().remote
        samples += len(batch[0])
        due = max(at, due + step_s)
        if step_s:
            time.sleep(max(0.0, due - time.perf_counter()))
        if not settled and at - began > asked["seconds"]:
            break
    rate, remote = samples / (at - began), (loader.stats().remote - remote_before) / samples
    print(json.dumps({"rate": rate, "remote": remote}), flush=True)
    loader.close()


def main() -> None:
    """Print a line about both hosts alone and together."""
    import harness
    from hosts import with_secret

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", type=float, default=0.45, help="cores of the training host (default: 0.45)")
    parser.add_argument("--there", type=float, default=0.45, help="cores of the other one (default: 0.45)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes there (default: 1)")
    parser.add_argument("--loop", type=float, default=0, help="pictures a second that the loop takes (default: no limit)")
    parser.add_argument("--ratio", type=float, help="the part of all batches that may be sent away (default: decided)")
    parser.add_argument("--link", type=int, help="rate of both links in Mbit/s")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with with_secret(2) as (hosts, environment):
        first, second = hosts
        for host, cores in ((first, options.here), (second, options.there)):
            host.limit_cores(cores)
            if options.link:
                host.limit_link(options.link * 1_000_000)
        settle = 15 if options.ratio is None else 3  # it is measured and decided meanwhile
        asked = {"address": "", "loop": 0, "ratio": options.ratio, "seconds": options.seconds, "settle": 3}
        asked["workers"] = 1

        def train(host: Any, **more: Any) -> dict[str, Any]:
            words = [sys.executable, __file__, json.dumps(asked | more)]
            return dict(json.loads(host.run(words, env=environment)))

        rows = []
        for _ in range(options.rounds):
            with ThreadPoolExecutor(2) as pool:
                alone_there = pool.submit(train, second, workers=options.workers)
                alone, other = train(first), alone_there.result()
            words = [sys.executable, "-m", "stoker", "worker", f"tcp://{first.address}:{PORT}"]
            workers = second.start([*words, "-n", str(options.workers)], env=environment)
            together = train(first, address=first.address, loop=options.loop, settle=settle)
            second.stop(workers)
            possible = alone["rate"] + other["rate"]
            possible = min(options.loop, possible) if options.loop else possible
            rows.append((together["rate"] / possible, alone["rate"], other["rate"], together))
    of_sum, alone_rate, other_rate, both = sorted(rows, key=lambda row: row[0])[len(rows) // 2]
    harness.report(
        f"JPEG on {options.here} cores, and workers on {options.there} cores of another host",
        ratio=of_sum,
        samples_per_s={"alone": alone_rate, "the other alone": other_rate, "together": both["rate"]},
        remote=both["remote"],
        loop=options.loop or None,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        be_a_trainer(json.loads(sys.argv[1]))
    else:
        main()
