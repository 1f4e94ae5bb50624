"""What secrets look like: passwords and queries of URLs, credentials by name, headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, islice, pairwise

from torch_dataloader_utils.redaction.names import is_secret

HIDDEN = "***"
SHORTEST = 4  # characters of a secret; what is shorter cannot be told from other text

# Paths follow a port in these URLs; in others, digits before a slash are the beginning of a password.
_WITH_PORTS = ("http", "https", "ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs")
_OF_FILES = (*_WITH_PORTS, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory", "file")
_SEPARATORS = 8  # of a password, at each of which a client may cut it
_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][\w+.-]*://")
_PORT = re.compile(r"\d{1,5}(?:[/?#]|$)")

# The queries of web addresses, where signed links carry their secret; elsewhere "?" may be a wildcard.
_QUERY = re.compile(r"(https?://[^\s?'\"]+|\w://[^\s?'\"]+(?=\?[\w.%\[\]-]+=))\?[^\s'\")>]+")
# Before the last @, or before the first if a password holds slashes (what follows a port is a path); a name without a
# password is a token in web addresses only (elsewhere, a container).
_PASSWORD = re.compile(
    r"(\w://)(?:[^\s/@'\"]+:[^\s/'\"]*@|[^\s/@:'\"]*:(?!:|\d+(?:[/\s]|$))[^\s@'\"]*@)|(https?://)[^\s/'\"]+@"
)
# A query without its address, as HTTP clients name the target of a request.
_SIGNED = re.compile(
    r"\?(?=[^\s'\"]*(?:\*\*\*|x-amz-|x-goog-|signature=|sig=|token=|key-pair-id=|awsaccesskeyid=|api_?key=))[^\s'\")>]+",
    re.IGNORECASE,
)
# Names that stand before a credential and nowhere else; "token=..." is also a partition folder.
_NAMED = re.compile(
    r"((?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|accountkey"
    r"|sharedaccesssignature|(?:aws_)?secret_access_key|aws_session_token|client_secret|access_token|password|passwd"
    r"|pwd|x-api-key)['\"]?\s?[:=]\s?)(\"[^\"]*\"|'[^']*'|[^\s&;,'\")}\]]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|(?:\w+ )?[^\s,'\")}\]]+)", re.IGNORECASE)
_BEARER = re.compile(r"\b(Basic|Bearer) (?=[\w.~+/-]*\d)[\w.~+/-]{12,}=*")


def without_patterns(text: str) -> str:
    """The text without what looks like a secret."""
    if "://" in text:
        text = _PASSWORD.sub(r"\1\2", _QUERY.sub(r"\1", text))
    if "?" in text:
        text = _SIGNED.sub("", text)
    if "=" in text or ":" in text:
        text = _HEADER.sub(_hidden_value, _NAMED.sub(_hidden_value, text))
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def user_and_password(url: str) -> str:
    """The user and password of a URL, or the token in their place, up to the "@"; "" without any."""
    return next((f"{login}@" for scheme, login, _ in _logins(url) if _has_secret(scheme, login)), "")


def secrets_of(url: str) -> Iterator[str]:
    """The passwords, tokens and queries of a URL, which may be a chain (`zip://x::s3://...`) and hold any character."""
    for scheme, login, rest in _logins(url):
        if _has_secret(scheme, login):
            # A password may hold more "@" than a client understands.
            for each in {login, f"{login}{rest}".rpartition("@")[0]}:
                yield from _parts(scheme, each.partition(":")[2] or each, f"{login}{rest}"[len(each) + 1 :])
        path, _, fragment = rest.partition("#")
        query = path.partition("?")[2]
        if query and scheme in ("http", "https"):
            yield query
        for name, _, value in (pair.partition("=") for pair in (*query.split("&"), *fragment.split("&"))):
            if value and is_secret((name,), value):
                yield value


def _logins(url: str) -> Iterator[tuple[str, str, str]]:
    """For each link of a chain of URLs: its scheme, its user and password, and the rest."""
    links = [(match.group()[:-3].lower(), *match.span()) for match in _SCHEME.finditer(url)]
    for (scheme, _, start), (_, stop, _) in pairwise([*links, ("", len(url), 0)]):
        rest = url[start:stop]
        login = _login(scheme, rest)
        yield scheme, login, rest[len(login) :]


def _has_secret(scheme: str, login: str) -> bool:
    """Whether there is a password, or a token; elsewhere than on the web, a name alone is a user or a container."""
    return bool(login) and (":" in login or scheme in ("http", "https"))


def _login(scheme: str, rest: str) -> str:
    """The user and password in a URL after its scheme, without the "@"; "" if it has none."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        return authority.rpartition("@")[0]
    _, colon, password = authority.partition(":")
    port = scheme in _WITH_PORTS and _PORT.match(rest.partition(":")[2])
    return rest.rpartition("@")[0] if colon and not port and not password.startswith(":") else ""


def _parts(scheme: str, password: str, host: str) -> Iterator[str]:
    """The password, and what clients take for a host or a path if it holds their separators."""
    ends = [-1, *(match.start() for match in islice(re.finditer("[@/?#:]", password), _SEPARATORS)), len(password)]
    for first, last in combinations(ends, 2):
        # Within the URL of a file, what lies between two separators may be the name of a folder.
        if first < 0 or last == len(password) or scheme not in _OF_FILES:
            yield password[first + 1 : last]
    place = re.split("[/?#]", host, maxsplit=1)[0]
    # A short end alone is too common to be hidden.
    yield from (f"{password[end + 1 :]}@{place}" for end in ends[1:-1] if len(password) - end <= SHORTEST)


def _hidden_value(match: re.Match[str]) -> str:
    value = match[2]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{match[1]}{quote}{HIDDEN}{quote}"
