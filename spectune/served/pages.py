"""Text from a server over HTTP. What a URL carries besides its place, credentials above all, is in no message."""

from concurrent.futures import Future
from threading import Thread
from urllib.parse import urlsplit

from spectune.errors import ConfigError, EngineError, reason_of

_MOST_BYTES = 64 * 2**20
_AS_IN = "write http://host:port/metrics"
_CHECK, _IS_IT_ONE = "check the address and the server", "is it a metrics page?"
_LOGIN = "give a user and password before the host, or pipe the page in: curl -H … | spectune telemetry -"
_CHECK_PATH = "check the path; most engines answer at /metrics, TensorRT-LLM at /prometheus/metrics"
_REMEDIES = {401: _LOGIN, 403: _LOGIN, 501: "start llama.cpp's server with --metrics"}  # by status
_SIGNS = {  # in a library's words, and what they mean
    "certificate": "TLS: its certificate is not trusted",
    "ssl": "TLS fails",
    "refused": "connection refused",
    "name or service": "no such host",
    "name resolution": "no such host",
    "peer closed": "the connection ended midway",
    "disconnected": "the connection ended midway",
    "unreachable": "the network is unreachable",
    "timed out": "it does not answer in time",
}


def is_url(text: str) -> bool:
    """Whether it names a server, not a file."""
    return text.lower().startswith(("http://", "https://"))


def shown(url: str) -> str:
    """The URL without user, password, query and fragment. Raises: ConfigError where it names no server for sure."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("the URL is malformed", _AS_IN) from error
    if "@" in parts.path + parts.query + parts.fragment:
        remedy = "write / ? # in a password as %2F %3F %23, @ in a path as %40"
        raise ConfigError("the URL has an @ beyond its host", remedy)
    if not host or any(character.isspace() for character in parts.netloc):
        raise ConfigError("the URL names no host", _AS_IN)
    return f"{parts.scheme.lower()}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}{parts.path}"


def fetched(url: str, timeout_s: float = 10.0) -> str:
    """The body of a page. Raises: EngineError where the server is missing, refuses, is too slow, dies or fails TLS."""
    import httpx2

    place, answer = shown(url), Future[str]()
    try:
        httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise ConfigError("the URL is malformed", _AS_IN) from error

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
                    raise EngineError(f"{place} answers with more than {_MOST_BYTES >> 20} MiB", _IS_IT_ONE)
    except (httpx2.HTTPError, httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
        problem, remedy = _failure(error)
        raise EngineError(f"{place} {problem}", remedy) from error
    if answer.status_code != 200:
        remedy = _REMEDIES.get(answer.status_code, _CHECK_PATH)
        raise EngineError(f"{place} answers with status {answer.status_code}", remedy)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngineError(f"{place} answers with bytes that are no text", _IS_IT_ONE) from error


def _failure(error: Exception) -> tuple[str, str]:
    """What failed, and a remedy. Not in the library's own text, which may quote the URL."""
    import httpx2

    if isinstance(error, httpx2.InvalidURL | UnicodeError):
        return "leads to a malformed URL", _CHECK
    if isinstance(error, ImportError | ValueError):  # a proxy of an unknown kind, or of one that needs another package
        problem = "cannot be read: the proxy that the environment names is not supported"
        return problem, "unset ALL_PROXY, or install httpx2[socks]"
    if isinstance(error, OSError):  # of SSL_CERT_FILE
        return f"cannot be read: {reason_of(error)}", "check SSL_CERT_FILE and SSL_CERT_DIR"
    said = next((said for sign, said in _SIGNS.items() if sign in str(error).lower()), type(error).__name__)
    return f"cannot be read: {said}", _CHECK
