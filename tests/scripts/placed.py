"""Has workers placed by a Ray cluster. Reads lines [wanted, there], and prints how many are there when they are so many.

placed.py CLUSTER [--answer]          (with --answer it only prints why the cluster cannot be used)
"""

import json
import secrets
import sys
import time

from stoker.remote.cluster import meet, parse_cluster
from stoker.remote.placement import WorkerPlacement
from stoker.remote.placing import PlacingOrder

if __name__ == "__main__":
    cluster = parse_cluster(sys.argv[1])
    met = meet(cluster)
    # Nobody listens there: workers wait.
    order = PlacingOrder(
        met.ray, f"tcp://{met.host}:7", secrets.token_hex(8), cluster.workers, cluster.resources, cluster.labels
    )
    placement = WorkerPlacement(order)
    if "--answer" in sys.argv:
        print(placement.first_answer())
    for line in () if "--answer" in sys.argv else sys.stdin:
        wanted, there = json.loads(line)
        placement.want(wanted)
        while placement.there != there:
            time.sleep(0.05)
        print(there, flush=True)
    placement.close()
