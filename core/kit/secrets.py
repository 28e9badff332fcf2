"""Addresses and secrets, as far as a person may read them: in messages, logs, reprs.

1. An address is shown without its password, and without the values of parameters whose names call them secrets.
2. An address that can be read in two ways, because a password's own @, /, ? or # is not percent-encoded, is shown as
   its scheme alone: what one client takes for the host is for another the rest of the password.
3. Each OncewardError passes its message through `without_logins`: it may repeat a driver's text, or an address that was
   given in place of something else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN: Final = "***"
UNREADABLE: Final = "…"
"""Text in place of an address that may not be shown."""
AMBIGUOUS: Final = (
    "has an @ that is not the one before the host, or a port that is no number, so a part of a password might be taken "
    "for the host and shown: percent-encode special characters (@ as %40, / as %2F, ? as %3F, : as %3A)"
)
_LONG: Final = 6
_SECRET: Final = r"(?:passw|pwd|secret|token|credential|signature|access_?key|account_?key|api_?key)"  # noqa: S105
_NAMES: Final = re.compile(_SECRET, re.IGNORECASE)
_SAFE: Final = r"[\w.~!$&'()*+,;=%-]"
"""RFC 3986: unreserved characters, sub-delimiters and percent-encoded ones."""
_HOST: Final = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.%-]+)(?::[0-9]*)?"
_SERVER: Final = re.compile(_HOST)
_USER_INFO: Final = re.compile(rf"({_SAFE}*)(:(?:{_SAFE}|:)*)?@")
_PLACE: Final = re.compile(rf"(?:{_HOST}(?:,{_HOST})*)?(?:[/?#].*)?", re.DOTALL)
_PARAMETER: Final = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")
_URL: Final = re.compile(r"[A-Za-z][\w+.-]*://")
_QUOTED: Final = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_SETTING_NAME: Final = rf"(?:{_SECRET}[\w.]{{0,20}}|(?:passw|pwd|secret)[\w.]{{0,20}}\s)="  # not "column token = int64"
_ENTRY_NAME: Final = rf"{_SECRET}[\w.]{{0,20}}[\"']\s?:"
_IN_TEXT: Final = re.compile(
    rf"""(?P<entry>["'][\w.]{{0,40}}{_ENTRY_NAME}\s?)(?:{_QUOTED}|[^\s,}}]+)"""
    rf"""|(?<!\w)(?P<mark>["'])(?P<quoted>(?:\\.|(?!(?P=mark)).){{0,500}})(?P=mark)(?!\w)"""
    r"""|(?P<address>[A-Za-z][\w+.-]{0,30}://(?:[^\s/@]{0,100}:\S{0,200}[ ][^\s@]{1,200}@)?\S*?)"""
    r"""(?P<end>[)\]}>'",.;:]*(?=\s|$))"""
    r"""|(?P<login>(?<![\w.~%+-])(?<![^:]/)(?://)?[^\s"'(=@:/]{0,100}:[^\s@:]\S{0,300}@)"""
    rf"""|(?P<setting>[\w.]{{0,20}}{_SETTING_NAME}\s?)"""
    rf"""(?:{_QUOTED}|\S+?)(?=[)\]'",.;:]*(?:\s|$))""",
    re.IGNORECASE | re.DOTALL,
)
"""Lengths are limited because a message may hold a whole row: a search must not take the square of its length."""
_SETTING: Final = re.compile(rf"{_SETTING_NAME}|{_ENTRY_NAME}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether the value of a setting of this name must not be shown."""
    return _NAMES.search(name) is not None


def shown_address(address: str) -> str:
    """Return a URL, or a server's `host:port`, as far as it may be shown."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address if _SERVER.fullmatch(address) else UNREADABLE
    user_info = _USER_INFO.match(rest)
    place = rest[user_info.end() :] if user_info else rest
    if not _PLACE.fullmatch(place) or _may_hold_login(place) or (user_info and "@" in place):
        return f"{scheme}://{UNREADABLE}"  # (2)
    user, password = user_info.groups() if user_info else ("", None)
    login = f"{user}{f':{HIDDEN}' if password is not None else ''}@" if user_info else ""
    return f"{scheme}://{login}{_PARAMETER.sub(_without_secret, place)}"


def _may_hold_login(text: str) -> bool:
    return 0 <= text.find(":") < text.rfind("@")


def _without_secret(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}={HIDDEN}" if is_secret_name(parameter[1]) else parameter[0]


def is_ambiguous(address: str, *, login: bool) -> bool:
    """Return whether a URL has an @ where none belongs: the text before it may be the rest of a password.

    Args:
        address: The URL to check.
        login: True if its reader found a user or a password in it.
    """
    return address.partition("://")[2].count("@") > login


def without_logins(text: str) -> str:
    """Return a text in which each address with a password is as shown_address shows it, and each secret setting ***."""
    return _IN_TEXT.sub(_shown, text) if "@" in text or _SETTING.search(text) else text


def _shown(match: re.Match[str]) -> str:
    if name := match["setting"] or match["entry"]:
        return f"{name}{HIDDEN}"
    if match["login"]:
        return f"{HIDDEN}@"
    text, mark = match["address"] or match["quoted"] or "", match["mark"] or ""
    is_url = _URL.match(text) is not None
    if is_url and not _may_hold_login(text.partition("://")[2]) and not _SETTING.search(text):
        return match[0]
    is_address = is_url or (_may_hold_login(text) and ":" in text.split(maxsplit=1)[0][:-1])
    return f"{mark}{shown_address(text) if is_address else without_logins(text)}{mark or match['end']}"


def redact(message: str, secrets: Iterable[str]) -> str:
    """Return the message without these secrets, in whatever form a library may show them: percent-encoded, escaped.

    A short secret is replaced only where it is a whole word: cut out of another one, it could be guessed from the rest.
    """
    forms = {form for s in secrets if s for form in (s, quote(s), quote(s, safe=""), repr(s)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
        message = re.sub(pattern, HIDDEN, message)
    return message
