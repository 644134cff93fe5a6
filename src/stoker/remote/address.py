"""Where a training job listens for workers on other hosts."""

from stoker.errors import ConfigError
from stoker.extras import OFFLOAD
from stoker.remote.cluster import is_cluster, parse_cluster
from stoker.wire.secret import shared_secret

_SCHEME = "tcp://"


def parse_address(text: str) -> tuple[str, int]:
    """The address in `tcp://HOST:PORT`, where this host listens for remote workers. Raises ConfigError."""
    host, colon, port = text.removeprefix(_SCHEME).rpartition(":")
    if not text.startswith(_SCHEME) or not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"offload= is tcp://HOST:PORT, an address of this host that workers on others dial, or a Ray cluster's "
            f"(ray://HEAD:PORT, auto), not {text!r}"
        )
    return host.strip("[]"), int(port)


def check(offload: str) -> None:
    """Raise ConfigError unless offload= can be used on this host."""
    if not isinstance(offload, str):
        raise ConfigError(f"offload= is tcp://HOST:PORT, ray://HEAD:PORT or auto, not {offload!r}")
    if is_cluster(offload):
        parse_cluster(offload)
        OFFLOAD.check()
        return
    parse_address(offload)
    OFFLOAD.check()
    shared_secret()
