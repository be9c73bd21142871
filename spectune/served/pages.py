"""Text from a server over HTTP. What a URL carries besides its place, credentials above all, is in no message."""

from concurrent.futures import Future
from threading import Thread
from urllib.parse import urlsplit

from spectune.errors import ConfigError, EngineError, reason_of

_TIMEOUT_S = 10.0
_MOST_BYTES = 64 * 2**20


def is_url(text: str) -> bool:
    """Whether it names a server, not a file."""
    return text.lower().startswith(("http://", "https://"))


def shown(url: str) -> str:
    """The URL without user, password, query and fragment.

    Raises: ConfigError for what is no URL of a server, and where an @ beyond the host leaves open where that is.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("the URL is malformed", "write http://host:port/metrics") from error
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(
            "the URL has an @ beyond its host", "write / ? # in a password as %2F %3F %23, @ in a path as %40"
        )
    if not host or any(character.isspace() for character in parts.netloc):
        raise ConfigError("the URL names no host", "write http://host:port/metrics")
    return f"{parts.scheme.lower()}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}{parts.path}"


def fetched(url: str, timeout_s: float = _TIMEOUT_S) -> str:
    """The body of a page; a user and password in the URL go into the request and nowhere else.

    Raises: EngineError where the server is missing, refuses, is too slow, dies midway or fails TLS.
    """
    import httpx2

    place, answer = shown(url), Future[str]()
    try:
        httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise ConfigError("the URL is malformed", "write http://host:port/metrics") from error

    def work() -> None:
        try:
            answer.set_result(_page(url, place, timeout_s))
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()  # a server may send a byte now and then for ever
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        problem = f"{place} has not answered whole after {timeout_s:g} s"
        raise EngineError(problem, "check that the server is up") from None


def _page(url: str, place: str, timeout_s: float) -> str:
    import httpx2

    try:
        with httpx2.stream("GET", url, timeout=timeout_s, follow_redirects=True) as answer:
            body = bytearray()
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise EngineError(
                        f"{place} answers with more than {_MOST_BYTES >> 20} MiB", "is it a metrics page?"
                    )
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise EngineError(f"{place} leads to a malformed URL", "check the address and the server") from error
    except (ImportError, ValueError) as error:  # a proxy of an unknown kind, or of one that needs another package
        raise EngineError(
            f"{place} cannot be read: the proxy that the environment names is not supported",
            "unset ALL_PROXY, or install httpx2[socks]",
        ) from error
    except OSError as error:  # of SSL_CERT_FILE
        raise EngineError(
            f"{place} cannot be read: {reason_of(error)}", "check SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error
    except httpx2.HTTPError as error:
        raise EngineError(f"{place} cannot be read: {_reason(error)}", "check the address and the server") from error
    if answer.status_code != 200:
        raise EngineError(f"{place} answers with status {answer.status_code}", _remedy(answer.status_code))
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngineError(f"{place} answers with bytes that are no text", "is it a metrics page?") from error


def _reason(error: Exception) -> str:
    """In a word: the library's own text may quote the URL."""
    text = str(error).lower()
    for sign, said in {
        "certificate": "TLS: its certificate is not trusted",
        "ssl": "TLS fails",
        "refused": "connection refused",
        "name or service": "no such host",
        "name resolution": "no such host",
        "peer closed": "the connection ended midway",
        "disconnected": "the connection ended midway",
        "unreachable": "the network is unreachable",
        "timed out": "it does not answer in time",
    }.items():
        if sign in text:
            return said
    return type(error).__name__


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "give a user and password before the host, or pipe the page in: curl -H … | spectune telemetry -"
    if status == 501:
        return "start llama.cpp's server with --metrics"
    return "check the path; most engines answer at /metrics, TensorRT-LLM at /prometheus/metrics"
