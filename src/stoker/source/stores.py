"""Object stores: the one file that knows obstore. What fails is an answer that says how, never an exception of obstore's.

A store is called by its address: `s3://bucket`, `gs://bucket`, `az://container`, `https://host`. Credentials are those of
the environment, as for the store's own tools; nothing of them is written down here. obstore tries again by itself, after
longer and longer pauses with chance in them: after 429 and 5xx, a broken line, and a body that ends early, which goes on
where it ended if the object is still the same.

Its threads do not survive a fork, and a forked child that uses it hangs: see `getting`, which decides who may.
"""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import from_url

from stoker.errors import ConfigError
from stoker.source.pieces import Answer, ListedObject, Outcome, Piece

_PAGE = 1000
_CLIENT: Any = {"timeout": "15m", "connect_timeout": "10s", "read_timeout": "60s"}
_RETRIES: Any = {
    "max_retries": 10,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2},
}
_SIGNED_BY = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_MISSING = {
    "/latest/": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
    " or AWS_SKIP_SIGNATURE=true for a public bucket",
    "/computeMetadata/": "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file",
    "/metadata/identity/": "AZURE_STORAGE_ACCOUNT_KEY",
    "Account must be specified": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY",
}
"""What helps, by what an error holds if nothing was set: the machine itself was asked, which in that cloud would know."""
_LONGEST = 500  # letters of an error
_PART = re.compile(r"<(Code|Message)>([^<]+)</")


class Stores:
    """The stores that this process uses, each opened when it is first asked for."""

    def __init__(self) -> None:
        self._opened: dict[str, Any] = {}

    def _store(self, address: str) -> Any:
        store = self._opened.get(address)
        return store if store is not None else self._opened.setdefault(address, _open(address))

    def get(self, piece: Piece) -> Answer:
        """Get a piece, and try again what may pass."""
        try:
            store = self._store(piece.store)
            options: Any = {"head": True} if piece.looks else {}
            if piece.etag:
                options["if_match"] = piece.etag
            if piece.end >= 0:
                options["range"] = (piece.start, piece.end)
            found = obstore.get(store, piece.key, options=options)
            content = b"" if piece.looks else memoryview(found.bytes())
        except (exceptions.BaseError, OSError, ValueError) as error:
            return _answer(error)
        meta = found.meta
        return Answer(Outcome.DONE, "", meta["size"], meta["e_tag"] or "", content)

    def pages(self, address: str, prefix: str) -> Iterator[list[ListedObject] | Answer]:
        """All objects whose keys begin with a folder, page by page; at last an answer that says how it ended."""
        try:
            for page in obstore.list(self._store(address), prefix or None, chunk_size=_PAGE):
                yield [ListedObject(meta["path"], meta["size"], meta["e_tag"] or "") for meta in page]
        except (exceptions.BaseError, OSError, ValueError) as error:
            yield _answer(error)
        else:
            yield Answer(Outcome.DONE)


def _open(address: str) -> Any:
    config: dict[str, Any] = {}
    client = dict(_CLIENT)
    provider = None
    if address.startswith("s3://"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            config["endpoint"] = endpoint
            client["allow_http"] = endpoint.startswith("http://")
        provider = _profile()
    elif address.startswith("http://"):
        client["allow_http"] = True
    elif address.startswith("gs://"):
        client["allow_http"] = True  # only ever to the address of an emulator, which a key file names
    elif address.startswith("az://") and os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        client["allow_http"] = True
    more: dict[str, Any] = {} if provider is None else {"credential_provider": provider}
    if config:
        more["config"] = config
    open_any: Any = from_url  # its overloads are by the kind of store, which is known when it runs
    return open_any(address, client_options=client, retry_config=_RETRIES, **more)


def _profile() -> Any:
    """Credentials as boto3 finds them in the profiles of AWS's own tools; None where the environment gives others."""
    named = os.environ.get("AWS_PROFILE")
    places = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    files = [Path(os.environ.get(name) or usual).expanduser() for name, usual in places.items()]
    if not named and (any(map(os.environ.get, _SIGNED_BY)) or not any(file.exists() for file in files)):
        return None
    if find_spec("boto3") is None:
        if named:
            raise ConfigError(f"AWS_PROFILE={named} is read by boto3, which is not installed: pip install boto3")
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except ValueError:  # the files have none
        return None
    except Exception as error:  # botocore's errors have no common name without it
        raise ConfigError(f"the AWS profile cannot be used: {error}") from error


def _answer(error: Exception) -> Answer:
    match error:
        case FileNotFoundError():
            outcome = Outcome.MISSING
        case exceptions.PreconditionError():
            outcome = Outcome.CHANGED
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            outcome = Outcome.DENIED
        case _:
            outcome = Outcome.FAILED
    return Answer(outcome, _in_words(str(error)))


def _in_words(text: str) -> str:
    """What the store said, in one line."""
    said = dict(_PART.findall(text))
    for sign, settings in _MISSING.items():
        if sign in text:
            return f"no credentials were found: set {settings}"
    if said:
        return ": ".join(part.strip().rstrip(".") for part in (said.get("Code"), said.get("Message")) if part)
    return " ".join(text.partition("Debug source")[0].split())[:_LONGEST]
