// SPDX-License-Identifier: GPL-2.0
/* Compiles if there is napi_build_skb(). */
#include <linux/skbuff.h>

struct sk_buff *leap_probe(void *memory);

struct sk_buff *leap_probe(void *memory)
{
	return napi_build_skb(memory, 512);
}
