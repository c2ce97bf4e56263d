#!/usr/bin/env python3
"""Lets a process compute for a part of each period, by stopping it: part-time.py PID PERCENT.

A quota of a control group is charged when the system's clock ticks, every few milliseconds: who works in bursts, as a board of
a ring does, then gets more of the processor than who always works, as a board that measures itself. This gives both the same.
"""
import ctypes
import os
import signal
import sys
import time

PERIOD_S = 0.002
PR_SET_TIMERSLACK = 29


def main():
    pid, percent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    works = PERIOD_S * percent / 100
    until = time.monotonic()
    try:
        while True:
            for sign, seconds in ((signal.SIGSTOP, PERIOD_S - works), (signal.SIGCONT, works)):
                os.kill(pid, sign)
                until += seconds
                time.sleep(max(0.0, until - time.monotonic()))
    except ProcessLookupError:
        pass


main()
