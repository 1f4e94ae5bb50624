"""The one function: no secret survives it, and nothing else is changed."""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from torch_dataloader_utils import DataNotFoundError, FileReadError, StructuredDataset
from torch_dataloader_utils.iceberg import table_storage
from torch_dataloader_utils.redaction import known, names, printable, redact_errors, remember_secrets
from torch_dataloader_utils.redaction.names import is_secret
from torch_dataloader_utils.storage import option_names

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=4, max_size=20).map(str.strip)
PASSWORDS = TEXTS.filter(lambda text: len(text) >= 4 and text.strip("*") and text.lower() not in names.NO_SECRETS)
HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,12}(\.[a-z]{2,5})?(:[1-9][0-9]{1,3})?", fullmatch=True)
SENTENCES = st.from_regex(r"([a-z]{1,3} ){0,5}", fullmatch=True)
FORMS = [
    str,
    lambda text: repr(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    html.escape,
    quote,
    lambda text: quote(text, safe=""),
    lambda text: quote(text, safe="!$&'()*+,;=:@/"),
    quote_plus,
    lambda text: quote(quote(text, safe=""), safe=""),
    lambda text: quote(text, safe="").lower() if text == text.lower() else quote(text),
]


def forget() -> None:
    """Examples share a test, but no secrets."""
    known._known, known._longest_first = {}, ()


@given(PASSWORDS, HOSTS, SENTENCES, SENTENCES, st.sampled_from(FORMS))
@example("p@ss/w:rd#1", "db.example.com", "could not reach ", " now", str)
def test_an_option_that_holds_a_secret(password: str, host: str, before: str, after: str, form: object) -> None:
    forget()
    remember_secrets({"client_kwargs": {"password": password}})
    spelled = form(password)  # type: ignore[operator]
    assume(spelled not in before + host + after)
    text = printable(f"{before}'{host}' refuses \"{spelled}\"{after}")
    assert spelled not in text
    assert text.startswith(f"{before}") or password in before


@given(
    PASSWORDS,
    HOSTS,
    SENTENCES,
    SENTENCES,
    st.sampled_from(["https", "s3", "ftp", "postgresql+psycopg2", "zip://x::http"]),
)
@example("a/@/b@", "host", "", "", "s3")
@example("1/23", "host", "", "", "s3")
def test_a_password_in_a_url(password: str, host: str, before: str, after: str, scheme: str) -> None:
    forget()
    # After a host and a port, a path may hold an "@": digits before a slash are no password.
    assume(not (password.partition("/")[0].isdigit() and "/" in password) or scheme in ("s3", "postgresql+psycopg2"))
    assume(not password.startswith(":") and "::" not in password and "://" not in password)
    url = f"{scheme}://user:{password}@{host}/folder/file"
    remember_secrets(url)
    assume(password not in f"{scheme}://{host}/folder/file{before}{after}user*")
    assert password not in printable(f"{before}{url}{after}")
    assert password not in printable(f"{before}the password {password} {after}")
    assert quote(password, safe="") not in printable(
        f"{before}{url.replace(password, quote(password, safe=''))}{after}"
    )


@given(PASSWORDS, st.sampled_from(["X-Amz-Signature", "sig", "token", "AWSAccessKeyId", "Key-Pair-Id", "Signature"]))
def test_a_value_in_a_query(password: str, name: str) -> None:
    forget()
    assume(not set(password) & set("#&"))
    url = f"https://host/file?a=1&{name}={password}&b=2"
    remember_secrets(url)
    assume(password not in "the server refuses https://host/file and ***")
    assert password not in printable(f"the server refuses {url} and {password}")


@given(PASSWORDS.filter(lambda text: len(text) >= 9), st.text(max_size=5), st.text(max_size=5))
def test_base64_around_a_secret(password: str, before: str, after: str) -> None:
    forget()
    remember_secrets({"password": password})
    encoded = base64.b64encode(f"{before}:{password}{after}".encode(errors="replace")).decode()
    whole = base64.b64encode(f"{before}:{password}".encode(errors="replace")).decode()
    core = encoded[len(encoded) // 3 : len(whole) - 4]
    assume(len(core) >= 6)
    assert core not in printable(f"headers: {encoded}")


@given(SENTENCES, HOSTS, st.lists(st.sampled_from(["part-0.parquet", "key=token", "day=2026-01-01", "a@b", "12:30"])))
@example("", "h", ["token=x"])
def test_what_holds_no_secret_is_unchanged(sentence: str, host: str, parts: list[str]) -> None:
    forget()
    remember_secrets(
        {"region": "us-east-1", "anon": "true", "use_ssl": "1", "token": "anon", "endpoint_url": "http://h:9000"}
    )
    for place in ("s3://bucket", f"http://{host}", "/data", f"abfs://box@{host}"):
        text = f"{sentence}{'/'.join([place, *parts])}: 1 of true us-east-1 anon {sentence}"
        assert printable(text) == text


@given(st.text(), PASSWORDS)
def test_it_changes_nothing_the_second_time(text: str, password: str) -> None:
    forget()
    remember_secrets({"password": password})
    once = printable(f"{text}{password} https://a:{password}@h/{text}")
    assert printable(printable(once)) == printable(once)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "Max retries exceeded with url: /f?X-Amz-Signature=abc&x=1 (Caused",
            "Max retries exceeded with url: /f (Caused",
        ),
        ("AccountName=me;AccountKey=c2VjcmV0;X=1", "AccountName=me;AccountKey=***;X=1"),
        ("{'Authorization': 'Basic abc', 'Accept': '*/*'}", "{'Authorization': '***', 'Accept': '*/*'}"),
        ("dsn: password=abc host=h", "dsn: password=*** host=h"),
        ("sent Bearer abcdefghijkl0123 to h", "sent Bearer *** to h"),
        ("s3://b/part-?.parquet and s3://b/day=?/x=1", "s3://b/part-?.parquet and s3://b/day=?/x=1"),
        ("Basic usage, Bearer of news", "Basic usage, Bearer of news"),
        ("gs://b/token=abc/part", "gs://b/token=abc/part"),
    ],
)
def test_secrets_that_nobody_gave(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("value", ["wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "0123456789abcdef0123456789abcdef"])
def test_a_long_random_value_is_a_secret_whatever_its_name(value: str) -> None:
    remember_secrets({"nobody_knows": value, "endpoint_url": "http://h"})
    assert printable(f"refused: {value}") == "refused: ***"


def test_every_name_of_a_credential_is_known() -> None:
    targets = {"key", "secret", "token", "account_key", "sas_token"}
    aliases = [
        name for store in option_names._STORES.values() for name, target in store.aliases.items() if target in targets
    ]
    files = ("service_account_path", "service_account_file")  # whose values are paths
    names = [*aliases, *table_storage._CREDENTIALS, "client_secret", "header.X-Api-Key", "header.Authorization"]
    given_away = [name for name in names if name not in ("profile", "anon") and not is_secret((name,), "hunter2")]
    assert set(given_away) == set(files)


@pytest.mark.parametrize(
    "shown",
    [
        "/data/test/1234.parquet: 1234 rows of test data",
        "s3://test/latest: the test of Test failed",
        "rank  rows\n0     1234",
        "column test_1234 of test.csv",
    ],
)
def test_plain_words_and_numbers_given_as_secrets_leave_messages_readable(shown: str) -> None:
    forget()
    remember_secrets({"key": "test", "secret": "data", "token": "1234", "password": "Test"})
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'key': 'test', 'secret': 'data'}", "{'key': '***', 'secret': '***'}"),
        ('{\\"key\\": \\"test\\"}', '{\\"key\\": \\"***\\"}'),
        ("access_key=test, secret_key: data", "access_key=***, secret_key: ***"),
        ("the Access Key test does not exist", "the Access Key *** does not exist"),
        ("the password is data", "the password is ***"),
        ("token%3Dtest%26x", "token%3D***%26x"),
        ("refused `data`", "refused `***`"),
        ("https://test:data@host/x", "https://host/x"),
        ("sent Basic " + base64.b64encode(b"testuser:database-of-1").decode(), "sent Basic ***"),
    ],
)
def test_plain_words_given_as_secrets_are_hidden_where_they_are_values(text: str, shown: str) -> None:
    forget()
    remember_secrets({"key": "test", "secret": "data"})
    assert printable(text) == shown


def test_short_secrets_of_other_characters_are_hidden_everywhere() -> None:
    forget()
    remember_secrets({"key": "aBcDe", "secret": "abc1"})
    assert printable("aBcDe: s3://abc1/xaBcDe a-abc1-b") == "***: s3://***/xaBcDe a-***-b"


def test_a_word_in_a_url_is_hidden_where_it_stands_alone() -> None:
    forget()
    remember_secrets({"secret": "test"})
    remember_secrets("https://host/x?sig=test")
    assert printable("test: s3://tests/latest 'test' %3Dtest") == "***: s3://tests/latest '***' %3D***"


def test_a_log_record_and_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    remember_secrets({"password": "hunter2"})
    log = logging.getLogger("torch_dataloader_utils")
    try:
        raise ValueError("hunter2")
    except ValueError:
        log.exception("with %s and %d", "hunter2", 3)
    assert "with *** and 3" in caplog.text
    assert "hunter2" not in caplog.text.replace('ValueError("hunter2")', "")


def test_the_package_has_one_logger() -> None:
    names = [name for name in logging.Logger.manager.loggerDict if name.startswith("torch_dataloader_utils")]
    assert names == ["torch_dataloader_utils"]


def test_our_errors_hide_secrets_themselves() -> None:
    remember_secrets({"password": "hunter2"})
    error = FileReadError("https://h/f?sig=abc refuses hunter2")
    error.add_note("again: hunter2")
    assert (str(error), error.__notes__) == ("https://h/f refuses ***", ["again: ***"])


class Stubborn(Exception):
    """An error whose text cannot be changed."""

    def __str__(self) -> str:
        return "hunter2 is wrong"


def stubborn() -> None:
    raise Stubborn


def test_an_error_that_cannot_be_rewritten_is_replaced() -> None:
    remember_secrets({"password": "hunter2"})

    with pytest.raises(RuntimeError, match=r"Stubborn: \*\*\* is wrong"):
        redact_errors(stubborn)()

    @redact_errors
    def fail() -> None:
        try:
            raise Stubborn
        except Stubborn as error:
            raise KeyError("hunter2") from error

    with pytest.raises(KeyError, match=r"\*\*\*") as caught:
        fail()
    assert str(caught.value.__cause__) == "Stubborn: *** is wrong"
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.__context__ is caught.value.__cause__


@pytest.mark.parametrize(
    "error",
    [
        KeyError(("hunter2", 1)),
        ValueError(["hunter2"], {"given": b"hunter2"}),
        ExceptionGroup("hunter2", [KeyError(("hunter2", 1)), ValueError("x")]),
        BaseExceptionGroup("all", [KeyboardInterrupt("hunter2")]),
        SyntaxError("hunter2", ("hunter2.py", 1, 1, "hunter2")),
        UnicodeDecodeError("utf-8", b"hunter2\xff", 7, 8, "invalid start byte"),
        UnicodeEncodeError("ascii", "hunter2\xff", 7, 8, "of hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_class(error: BaseException) -> None:
    forget()
    remember_secrets({"password": "hunter2"})
    error.add_note("hunter2")
    error.__cause__ = OSError("hunter2")

    @redact_errors
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert type(caught.value) is type(error)
    printed = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in printed + repr(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert "***" in printed


def test_a_group_keeps_what_can_stay_and_replaces_the_rest() -> None:
    remember_secrets({"password": "hunter2"})
    kept = KeyError("column")

    @redact_errors
    def fail() -> None:
        raise ExceptionGroup("several", [kept, Stubborn()])

    with pytest.raises(ExceptionGroup, match="several") as caught:
        fail()
    assert caught.value.exceptions[0] is kept
    assert repr(caught.value.exceptions[1]) == "RuntimeError('Stubborn: *** is wrong')"


def test_an_error_about_a_list_that_holds_itself() -> None:
    remember_secrets({"password": "hunter2"})
    circle: list[Any] = ["hunter2"]
    circle.append(circle)

    @redact_errors
    def fail() -> None:
        raise ValueError(circle)

    with pytest.raises(RuntimeError, match=r"ValueError: \['\*\*\*', "):
        fail()


def test_an_error_without_a_secret_keeps_its_type_and_its_causes() -> None:
    remember_secrets({"password": "hunter2"})

    @redact_errors
    def fail() -> None:
        try:
            raise FileNotFoundError(2, "No such file", "/hunter2/x")
        except OSError as error:
            raise KeyError("column") from error

    with pytest.raises(KeyError, match="column") as caught:
        fail()
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.__cause__.filename == "/***/x"


def test_groups_of_errors() -> None:
    remember_secrets({"password": "hunter2"})

    @redact_errors
    def fail() -> None:
        raise ExceptionGroup("several", [ValueError("hunter2"), KeyError("column")])

    with pytest.raises(ExceptionGroup) as caught:
        fail()
    assert repr(caught.value.exceptions) == "(ValueError('***'), KeyError('column'))"


def test_a_name_that_is_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"part-\xff.parquet")
    assert printable(name) == "part-\\udcff.parquet"
    with pytest.raises(DataNotFoundError) as caught:
        StructuredDataset.create_dataloader(tmp_path / name)
    assert b"part-\\udcff.parquet" in str(caught.value).encode()


def test_options_that_hold_themselves_or_cannot_be_looked_at() -> None:
    class Odd(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError

    circle: list[Any] = []
    circle += [circle] * 99
    remember_secrets({"a": circle, "b": Odd(), "token": "correct-horse"})
    assert printable("it is correct-horse") == "it is ***"
