"""Who we are to Globus: an application of the user's, or the user, by the SDK's own files.

``GLOBUS_CLIENT_ID`` names the application (registered at
https://app.globus.org/settings/developers). With ``GLOBUS_CLIENT_SECRET`` it acts for itself;
without, the user has logged in before, and the tokens are in the SDK's own storage below
``~/.globus``. A process without a terminal never asks for a login: it says how to.

``tests/unit/test_globus_auth.py``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ckptflow.errors import TierDenied
from ckptflow.tiers.globus_errors import LOG_IN

_APP = "ckptflow"


def transfer_client(data_access: Sequence[str]) -> Any:
    """Return a ``globus_sdk.TransferClient`` for whoever the environment says we are.

    Args:
        data_access: ids of collections that ask for a consent of their own.

    Raises:
        TierDenied: no application is named, the user has not logged in, or that has ended.
    """
    app, client = _app_and_client(data_access)
    if "GLOBUS_CLIENT_SECRET" not in os.environ and app.login_required():
        raise TierDenied(f"Nobody has logged in to Globus here, or it has ended. {LOG_IN}.")
    return client


def log_in(*data_access: str) -> None:
    """Log the user in: prints an address, and asks for the code that is shown there.

    Args:
        data_access: ids of collections that ask for a consent of their own.
    """
    app, _ = _app_and_client(data_access)
    app.login(force=True)


def _app_and_client(data_access: Sequence[str]) -> tuple[Any, Any]:
    import globus_sdk

    name, secret = os.environ.get("GLOBUS_CLIENT_ID"), os.environ.get("GLOBUS_CLIENT_SECRET")
    if not name:
        raise TierDenied(
            "Globus has to know the application: register one at "
            "https://app.globus.org/settings/developers and set GLOBUS_CLIENT_ID."
        )
    if secret:
        app: Any = globus_sdk.ClientApp(_APP, client_id=name, client_secret=secret)
    else:
        config = globus_sdk.GlobusAppConfig(
            request_refresh_tokens=True, token_validation_error_handler=None
        )
        app = globus_sdk.UserApp(_APP, client_id=name, config=config)
    client = globus_sdk.TransferClient(app=app)
    for collection in data_access:
        client.add_app_data_access_scope(collection)
    return app, client
