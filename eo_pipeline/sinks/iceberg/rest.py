"""A REST catalog as PyIceberg speaks to it, but for ever to none that does not answer."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

#: Seconds for a connection; and for an answer, which a commit may take the catalog a while to give.
CONNECT_S, ANSWER_S = 10.0, 60.0


class _PatientAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **more: Any) -> Response:
        if more.get("timeout") is None:
            more["timeout"] = (CONNECT_S, ANSWER_S)
        return super().send(request, *args, **more)


class PatientRestCatalog(RestCatalog):
    """PyIceberg 0.12 sets no time-out: a connection that hangs would hang the run with it. Nothing
    is repeated here: whether a commit landed of which no answer came, the ledger says.
    """

    def _create_session(self) -> Session:
        session = super()._create_session()
        for prefix, adapter in list(session.adapters.items()):
            if type(adapter) is HTTPAdapter:  # one that signs requests has retries of its own
                session.mount(prefix, _PatientAdapter())
        return session
