/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the tests of one board.
 */
#ifndef LEAP_SELFTEST_H
#define LEAP_SELFTEST_H

#include <errno.h>
#include "board.h"

#define SESSION 0xabcdef0123456789ULL
#define HERE 7001
#define PEER 7002

#define refused(expression, code) check((expression) < 0 && errno == (code))

/* Two openers on the loopback, one sending to the other. */
extern struct port sender, receiver;

void open_pair(const char *address, uint32_t first_seq);
void close_pair(void);

/* Sends a frame from a slot and checks what arrives; the bank stays held. */
uint32_t deliver(uint32_t seq, uint32_t bytes);

void only_our_datagrams_are_taken(void);
void damaged_packets_are_counted_and_never_written(void);
void fragments_go_on(void);
void a_packet_of_several_datagrams_is_taken_apart(void);
void what_is_not_ours_in_a_packet_reaches_the_socket(void);

bool has_ipv6(void);
void ipv6_is_offered_where_the_kernel_has_it(void);
void a_way_that_is_not_there_is_refused(void);
void a_device_may_go_down_under_a_sender(void);
void a_namespace_stays_for_those_who_opened_there(void);
void a_namespace_ends_with_packets_on_their_way(void);

#endif
