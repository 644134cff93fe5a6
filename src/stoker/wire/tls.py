"""TLS below the handshake, where certificates are given: then nobody on the way can read or change what is sent.

Both sides show a certificate, and each checks that the other's was signed by the authority. Which host it names is not
checked: hosts are often given as addresses, and the secret has to be known besides. So the authority should sign for these
hosts alone.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ConfigError

VARIABLES = ("STOKER_TLS_CERTIFICATE", "STOKER_TLS_KEY", "STOKER_TLS_AUTHORITY")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM format."""

    certificate: Path
    key: Path
    authority: Path

    @property
    def files(self) -> list[str]:
        """All of them, as `from_files` takes them in another process."""
        return [str(self.certificate), str(self.key), str(self.authority)]

    def context(self, is_server: bool) -> ssl.SSLContext:
        """What wraps the sockets of one side. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"TLS cannot be used with {self.certificate}, {self.key}, {self.authority}: {error}"
            ) from error
        return context


def from_environment(environment: Mapping[str, str] = os.environ) -> Tls | None:
    """TLS as the environment asks for it; None if it does not. Raises ConfigError if only a part is named."""
    paths = [environment.get(variable, "") for variable in VARIABLES]
    if not any(paths):
        return None
    if not all(paths):
        raise ConfigError(f"TLS needs all of {', '.join(VARIABLES)}")
    return Tls(*(Path(os.path.abspath(path)) for path in paths))


def from_files(files: Sequence[str]) -> Tls | None:
    """TLS with the files that another process names (`Tls.files`); None if it names none."""
    return Tls(*map(Path, files)) if files else None
