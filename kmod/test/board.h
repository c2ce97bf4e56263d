/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the test program that runs in the emulated boards.
 */
#ifndef LEAP_BOARD_H
#define LEAP_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "../leap_wire.h"

#define check(condition)						     \
	do {								     \
		if (!(condition)) {					     \
			fprintf(stderr, "%s:%d: %s (errno %m)\n", __FILE__,  \
				__LINE__, #condition);			     \
			exit(1);					     \
		}							     \
	} while (0)

/* An open device and its mapping. */
struct port {
	int fd;
	uint8_t *map;
};

struct port port_open(void);
void port_close(struct port *port);
struct port port_at(const char *address, uint16_t number);
struct leap_endpoint endpoint(const char *address, uint16_t number);
int port_from(struct port *port, const char *address, uint16_t number,
	      uint64_t session, uint32_t first_seq);
struct leap_dest port_to(struct port *port, const char *address, uint16_t number,
			 uint64_t session);
struct leap_stats port_stats(struct port *port);

struct leap_bank_meta *bank_meta(struct port *port, uint32_t bank);
uint8_t *bank_bytes(struct port *port, uint32_t bank);
uint8_t *slot_bytes(struct port *port, uint32_t slot);
struct leap_send frame_send(uint32_t slot, uint32_t seq, uint32_t bytes);
struct leap_send port_send(struct port *port, struct leap_send send);
int port_wait(struct port *port, uint32_t timeout_us, uint32_t *bank);
void bank_release(struct port *port, uint32_t bank);

void fill_frame(uint8_t *bytes, uint32_t n, uint32_t seq);
bool is_frame(const uint8_t *bytes, uint32_t n, uint32_t seq);
uint64_t now_us(void);
void sleep_ms(unsigned int ms);

int netem(const char *device, uint32_t delay_ms, uint32_t loss_percent,
	  uint32_t duplicate_percent, uint32_t reorder_percent);
size_t udp_packet(uint8_t *packet, const char *from, uint16_t from_port, const char *to,
		  uint16_t to_port, const void *payload, size_t n);
int raw_socket(void);
void raw_send(int fd, const char *to, const uint8_t *packet, size_t n);

int selftest(void);
int fuzz(uint64_t seed, unsigned long calls);

#endif
