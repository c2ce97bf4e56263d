// SPDX-License-Identifier: GPL-2.0
/* Compiles if a packet's flags, not its tx_flags, say that pages are shared. */
#include <linux/skbuff.h>

void leap_probe(struct sk_buff *skb);

void leap_probe(struct sk_buff *skb)
{
	skb_shinfo(skb)->flags |= SKBFL_SHARED_FRAG;
}
