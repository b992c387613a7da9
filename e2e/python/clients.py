"""The published client, sync and async, behind one face.

A test written once runs with both: `Blocking` runs what the asynchronous client
returns on a loop of its own, and leaves the synchronous one as it is.
"""

import asyncio
import inspect

from opensandbox import Sandbox, SandboxManager, SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.models.execd import ExecutionHandlers
from opensandbox.models.execd_sync import ExecutionHandlersSync


class Blocking:
    """Wraps an object of the asynchronous client."""

    def __init__(self, wrapped, loop):
        self._wrapped = wrapped
        self._loop = loop

    def __getattr__(self, name):
        return block(getattr(self._wrapped, name), self._loop)


def block(value, loop):
    if inspect.iscoroutine(value):
        return block(loop.run_until_complete(value), loop)
    if inspect.isasyncgen(value) or hasattr(value, "__aiter__"):
        async def drain():
            return [item async for item in value]

        return loop.run_until_complete(drain())
    if inspect.isroutine(value):
        return lambda *args, **kwargs: block(value(*args, **kwargs), loop)
    if type(value).__module__.startswith(("opensandbox", "code_interpreter")) and ".models" not in type(value).__module__:
        return Blocking(value, loop)
    return value


class Client:
    """Makes sandboxes with one of the two clients and ends them all at the end."""

    def __init__(self, kind, domain, key, request_timeout=None):
        self.kind = kind
        self.loop = asyncio.new_event_loop() if kind == "async" else None
        options = {"domain": domain, "api_key": key}
        if request_timeout:
            options["request_timeout"] = request_timeout
        self.config = (ConnectionConfig if self.loop else ConnectionConfigSync)(**options)
        self.made = []
        self.address = (domain, key)

    def _call(self, function, *args, **kwargs):
        made = function(*args, connection_config=self.config, **kwargs)
        return block(made, self.loop) if self.loop else made

    def create(self, image="host", **kwargs):
        sandbox = self._call((Sandbox if self.loop else SandboxSync).create, image, **kwargs)
        self.made.append(sandbox)
        return sandbox

    def connect(self, sandbox_id):
        return self._call((Sandbox if self.loop else SandboxSync).connect, sandbox_id)

    def resume(self, sandbox_id):
        return self._call((Sandbox if self.loop else SandboxSync).resume, sandbox_id)

    def manager(self):
        return self._call((SandboxManager if self.loop else SandboxManagerSync).create)

    def handlers(self, **functions):
        """Handlers of the right kind around plain functions."""
        if not self.loop:
            return ExecutionHandlersSync(**functions)

        def lift(function):
            async def handler(message):
                function(message)

            return handler

        return ExecutionHandlers(
            **{k: lift(v) if callable(v) else v for k, v in functions.items()}
        )

    def close(self):
        for sandbox in self.made:
            try:
                sandbox.kill()
            except Exception:  # noqa: BLE001 - most tests end their own sandbox
                pass
            sandbox.close()
        if self.loop:
            self.loop.close()
