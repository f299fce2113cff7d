"""Starts a thread, which a fork would lack."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
