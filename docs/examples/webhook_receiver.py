"""FastAPI: a receiver of webhooks that takes what is signed, and each message once.

Run: HOOK_SECRET=whsec_... uvicorn webhook_receiver:api
"""

import os
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from hwqueue.errors import InvalidSignature
from hwqueue.webhooks import verify

secrets = os.environ["HOOK_SECRET"].split()  # several while one is replaced by another
api = FastAPI()
handled: set[str] = set()  # yours is a table with a unique key


@api.post("/hwqueue", status_code=204)
async def receive(request: Request) -> None:
    try:
        message = verify(request.headers, await request.body(), secrets)
    except InvalidSignature as error:
        raise HTTPException(401, str(error)) from error
    if request.headers["webhook-id"] in handled:
        return  # it came before, and the answer was lost
    handle(message)
    handled.add(request.headers["webhook-id"])


def handle(message: dict[str, Any]) -> None:
    print(message["type"], message["data"].get("lease_id"), flush=True)
