"""Waits for a transfer in an event loop, by the descriptor of its job."""

from __future__ import annotations

import asyncio
import os

from ._straightway import Receipt, Transfer


async def receipt_of(transfer: Transfer) -> Receipt:
    """The receipt of a transfer. If the task is cancelled, so is the transfer."""
    if not transfer.done():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        # A loop has one reader for each descriptor, and several tasks may wait for one transfer.
        descriptor = os.dup(transfer.fileno())
        loop.add_reader(descriptor, wake)
        try:
            await ended
        except asyncio.CancelledError:
            transfer.cancel()
            raise
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return transfer.result()
