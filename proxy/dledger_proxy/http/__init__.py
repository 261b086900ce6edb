"""HTTP and JSON front of the proxy: messages for scripts, webhooks and browsers.

Start with `front`: `HttpFront` serves the operations of `operations` over a port. Handlers are in `sending`,
`receiving`, `tailing` and `looking`; what they read and answer is in `bodies`. They reach the cluster only through the
protocol `Backend`, which `clients` implements with our client's public classes. A restart loses nothing, because
receipts and cursors carry what they stand for.
"""

from .backend import Backend
from .clients import ClientBackend
from .config import HttpKeys
from .front import HttpFront
from .metrics import HttpMetrics

__all__ = ["Backend", "ClientBackend", "HttpFront", "HttpKeys", "HttpMetrics"]
