"""Predict the speed of a job with other cores, cache, storage or device, from its profile.

PROFILE is what `stoker analyze` wrote. Without options: tables of cores, cache, storage and device, and of --prep where it
was measured; the smallest cache and the fewest cores that remove the stall. With options, the prediction for these
together. All numbers are in proportion to what was measured: "as measured" is the speed of the script's own loop.

With --hosts the job runs on several hosts like the measured one, each with a cache for that fraction of the dataset, and
reads what another host has in its cache from there, over links of that rate.

  stoker whatif profile.json --cores 4,8 --cache 0.5
  stoker whatif profile.json --hosts 2,4 --cache 0.3 --network 1.25GB/s
"""

import argparse
import json
import math
from dataclasses import asdict, replace
from typing import Any

from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.hosts import HostsPrediction, on_hosts
from stoker.decide.model import Share
from stoker.decide.whatif import PredictedRow, advise, fewest_cores, on_cores, smallest_cache, table
from stoker.errors import ConfigError
from stoker.plan import HOST, PREPS
from stoker.profile import Profile
from stoker.units import format_bytes, parse_rate

_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
_FACTORS = (1.0, 2.0, 4.0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("profile", metavar="PROFILE", help="a profile.json")
    parser.add_argument(
        "--cores", metavar="N[,N...]", help="so many cores with a worker each, on this host or a larger one"
    )
    parser.add_argument("--workers", metavar="N[,N...]", help="so many workers on the same cores")
    parser.add_argument("--kind", choices=["processes", "threads"], help="what workers are")
    parser.add_argument("--prep", choices=PREPS, help="where pixels are computed, if `stoker analyze` has measured that")
    parser.add_argument("--cache", metavar="FRACTION", help="the part of the dataset that is cached: 0.35, or 35%%")
    parser.add_argument(
        "--storage", metavar="RATE", help="what storage gives to these workers: 530MB/s, or 2x of what it was"
    )
    parser.add_argument("--gpu", metavar="FACTOR", help="a device so many times as fast: 2")
    parser.add_argument("--hosts", metavar="N[,N...]", help="so many hosts with a cache each that others may read from")
    parser.add_argument("--network", metavar="RATE", help="what the link of a host brings: 1.25GB/s")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the predictions."""
    profile = Profile.load(options.profile)
    forecast, now = Forecast.of(profile), as_measured(profile)
    if options.network is not None and options.hosts is None:
        raise ConfigError("--network is the link between hosts: say how many there are by --hosts")
    asked = _asked(profile, now, options)
    several = _several(profile, forecast, asked or [now], options)
    if several:
        tables = {"asked": [PredictedRow(one.share, one.prediction) for one in several]}
    elif asked:
        tables = {"asked": [PredictedRow(one, forecast(one)) for one in asked]}
    else:
        tables = _all(profile, forecast, now)
    share = (asked or [now])[0]
    answers = {
        "smallest_cache": asdict(smallest_cache(forecast, replace(share, cached=0.0))),
        "fewest_cores": asdict(fewest_cores(forecast, share)),
    }
    measured = PredictedRow(now, forecast(now))
    if options.json:
        plain = {name: [_plain(row) for row in rows] for name, rows in tables.items()}
        document = {"now": _plain(measured), **plain, **answers, "advice": [asdict(one) for one in advise(profile)]}
        if several:
            document["hosts"] = [_plain_hosts(one) for one in several]
        print(json.dumps(document, indent=2))
        return 0
    groups = [
        [("as measured", measured)],
        *([(_label(name, row.share), row) for row in rows] for name, rows in tables.items()),
    ]
    if several:
        groups[1] = [(f"{_hosts(one)}, {label}", row) for one, (label, row) in zip(several, groups[1], strict=True)]
    width = max(len(label) for group in groups for label, _ in group)
    print(_line(width, "", "samples/s", "95 % band", "limit", "stall: prep", "fetch"))
    print("\n\n".join("\n".join(_row(width, label, row) for label, row in group) for group in groups))
    if several:
        print("\n" + "\n".join(map(_sentence, several)))
        return 0
    print(f"\nSmallest cache without a stall: {_answer(answers['smallest_cache'], '{:.0%}')}")
    print(f"Fewest cores without a stall: {_answer(answers['fewest_cores'], '{:g}')}")
    return 0


def _asked(profile: Profile, now: Share, options: argparse.Namespace) -> list[Share]:
    """A share for each number of cores and of workers, with everything else that was asked for. None if nothing was."""
    names = ("cores", "workers", "kind", "prep", "cache", "storage", "gpu")
    if all(getattr(options, name) is None for name in names):
        return []
    share = now
    if options.kind is not None:
        share = replace(share, threads=options.kind == "threads")
    if options.prep is not None:
        share = _with_prep(share, options)
    if options.cache is not None:
        share = replace(share, cached=_number(options.cache, "--cache"))
    if options.storage is not None:
        share = replace(share, storage_factor=_storage(profile, options.storage))
    if options.gpu is not None:
        share = replace(share, gpu_factor=_number(options.gpu.removesuffix("x"), "--gpu"))
    shares = [share]
    if options.cores is not None:
        shares = [on_cores(profile.rates, share, count) for count in _counts(options.cores, "--cores")]
    if options.workers is not None:
        counts = _counts(options.workers, "--workers")
        shares = [replace(one, workers=count) for one in shares for count in counts]
    return shares


def _with_prep(share: Share, options: argparse.Namespace) -> Share:
    if options.prep == HOST:
        return share
    if options.kind == "threads":
        raise ConfigError(f"--prep {options.prep} is done with workers that are processes, not with --kind threads")
    return replace(share, prep=options.prep, threads=False)


def _several(
    profile: Profile, forecast: Forecast, shares: list[Share], options: argparse.Namespace
) -> list[HostsPrediction]:
    """A prediction for each number of hosts, if hosts were asked for."""
    if options.hosts is None:
        return []
    network = None if options.network is None else parse_rate(options.network, "--network")
    counts = _counts(options.hosts, "--hosts")
    return [on_hosts(profile, forecast, share, count, network) for share in shares for count in counts]


def _all(profile: Profile, forecast: Forecast, now: Share) -> dict[str, list[PredictedRow]]:
    rates, most = profile.rates, max(2, round(2 * (profile.rates.cores or profile.workers)))
    counts = sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
    tables = {
        "cores": table(forecast, now, "cores", counts),
        "cache": table(forecast, now, "cached", _FRACTIONS),
        "lru": table(forecast, replace(now, policy="lru"), "cached", _FRACTIONS[1:-1]),
        "storage": table(forecast, now, "storage_factor", _FACTORS),
        "gpu": table(forecast, now, "gpu_factor", _FACTORS),
    }
    if forecast.on_device:
        tables["prep"] = table(forecast, replace(now, threads=False), "prep", (HOST, *forecast.on_device))
    if not rates.storage:
        for name in ("cache", "lru", "storage"):
            del tables[name]
    return tables


def _storage(profile: Profile, text: str) -> float:
    if text.endswith("x"):
        return _number(text[:-1], "--storage")
    rate = parse_rate(text, "--storage")
    if not profile.dataset.sample_bytes or not profile.rates.storage:
        raise ConfigError("--storage in bytes needs the dataset's size and the storage rate in the profile: say 2x instead")
    return rate / profile.world / profile.dataset.sample_bytes / profile.rates.storage


def _number(text: str, what: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"{what} is a number, not {text!r}") from None
    if not math.isfinite(value):
        raise ConfigError(f"{what} is a finite number, not {text!r}")
    return value


def _counts(text: str, what: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise ConfigError(f"{what} is a number from 1, or several with commas between them, not {text!r}")
    return [int(word) for word in words]


def _plain(row: PredictedRow) -> dict[str, Any]:
    """JSON has no infinity: a stage that costs nothing has no rate. `prep` is a rate, `where` is where it is done."""
    values = asdict(row.share) | {"where": row.share.prep} | asdict(row.prediction)
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}


def _plain_hosts(found: HostsPrediction) -> dict[str, Any]:
    """All but what the rows have."""
    return {name: value for name, value in asdict(found).items() if name not in ("share", "prediction")}


def _sentence(found: HostsPrediction) -> str:
    here, peer, storage = (f"{part:.0%}" for part in (found.tiers.here, found.tiers.peer, found.tiers.storage))
    received = format_bytes(found.network_bytes_per_s)
    return (
        f"{_hosts(found)} together: {found.rate:,.0f} samples/s, an epoch in {found.epoch_s:,.1f} s; without peers "
        f"{found.without_peers:,.0f} samples/s.\n"
        f"  From a host's own cache {here}, from other hosts {peer} ({received}/s to each), from storage {storage}."
    )


def _hosts(found: HostsPrediction) -> str:
    return f"{found.hosts} host{'s' if found.hosts != 1 else ''}"


def _label(name: str, share: Share) -> str:
    if name == "cores":
        return f"{share.workers} core{'s' if share.workers != 1 else ''}, a worker each"
    if name in ("cache", "lru"):
        return f"{share.cached:.0%} cached, {share.policy}"
    if name == "storage":
        return f"storage x {share.storage_factor:g}"
    if name == "prep":
        return f"--prep {share.prep}"
    if name == "gpu":
        return f"device x {share.gpu_factor:g}"
    kind = "thread" if share.threads else "worker"
    words = f"{share.workers} {kind}{'s' if share.workers != 1 else ''}, {share.cached:.0%} cached"
    words += f", --prep {share.prep}" if share.prep != HOST else ""
    words += f", {share.peers:.0%} from other hosts" if share.peers else ""
    words += f", storage x {share.storage_factor:.2g}" if share.storage_factor != 1 else ""
    return words + (f", device x {share.gpu_factor:g}" if share.gpu_factor != 1 else "")


def _row(width: int, label: str, row: PredictedRow) -> str:
    seen = row.prediction
    rate, band = f"{'~' if seen.extrapolated else ''}{seen.rate:,.0f}", f"{seen.low:,.0f}..{seen.high:,.0f}"
    return _line(width, label, rate, band, seen.limit, f"{seen.prep_stall:.0%}", f"{seen.fetch_stall:.0%}")


def _line(width: int, *cells: str) -> str:
    label, rate, band, limit, prep, fetch = cells
    return f"{label:{width}} {rate:>11} {band:>17}  {limit:6}{prep:>12}{fetch:>7}".rstrip()


def _answer(answer: dict[str, Any], form: str) -> str:
    return f"none; {answer['reason']}" if answer["value"] is None else f"{form.format(answer['value'])}; {answer['reason']}"
