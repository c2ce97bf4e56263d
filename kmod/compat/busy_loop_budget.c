// SPDX-License-Identifier: GPL-2.0
/* Compiles if napi_busy_loop() takes a budget. */
#include <net/busy_poll.h>

void leap_probe(void);

void leap_probe(void)
{
	napi_busy_loop(0, NULL, NULL, false, BUSY_POLL_BUDGET);
}
