// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of what the module does with packets that are damaged, forged, in fragments or joined.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "selftest.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

static int udp_socket(const char *address, uint16_t number)
{
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_port = htons(number) };
	struct timeval timeout = { .tv_usec = 200000 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	inet_pton(AF_INET, address, &local.sin_addr);
	check(fd >= 0 && bind(fd, (void *)&local, sizeof(local)) == 0);
	check(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	return fd;
}

static struct leap_datagram data_header(uint32_t seq, uint32_t n_chunks, uint32_t chunk,
					uint32_t bytes)
{
	struct leap_datagram header = {
		.magic = cpu_to_le32(LEAP_MAGIC), .version = LEAP_WIRE_VERSION,
		.session = cpu_to_le64(SESSION), .seq = cpu_to_le32(seq),
		.n_chunks = cpu_to_le16(n_chunks), .chunk = cpu_to_le16(chunk),
		.payload_bytes = cpu_to_le16(bytes),
		.frame_bytes = cpu_to_le32((n_chunks - 1) * LEAP_SLOT_BYTES + bytes),
	};

	return header;
}

struct hostile {
	int raw, udp;
	uint8_t payload[LEAP_HEADER_BYTES + 4096];
	uint8_t packet[8192];
};

static size_t hostile_packet(struct hostile *h, const char *from, uint16_t from_port,
			     const struct leap_datagram *header, size_t bytes)
{
	memcpy(h->payload, header, sizeof(*header));
	return udp_packet(h->packet, from, from_port, "127.0.0.1", HERE, h->payload,
			  sizeof(*header) + bytes);
}

/* Sends a datagram; returns whether the socket on our port got it. */
static bool passes(struct hostile *h, const char *from, uint16_t from_port,
		   const struct leap_datagram *header, size_t bytes)
{
	uint8_t answer[8192];

	raw_send(h->raw, "127.0.0.1", h->packet, hostile_packet(h, from, from_port, header, bytes));
	return recv(h->udp, answer, sizeof(answer), 0) == (ssize_t)(sizeof(*header) + bytes);
}

void only_our_datagrams_are_taken(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 2, 0, 1400), other;

	h.raw = raw_socket();
	h.udp = udp_socket("127.0.0.1", HERE);
	open_pair("127.0.0.1", 0);
	check(!passes(&h, "127.0.0.1", PEER, &header, 1400));
	check(passes(&h, "127.0.0.2", PEER, &header, 1400));
	check(passes(&h, "127.0.0.1", PEER + 1, &header, 1400));
	other = header, other.session++;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.kind = 1;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.version = 2;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.magic = 0;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	check(port_stats(&receiver).rx_datagrams == 1);
	/* Without a peer to receive from, the module takes nothing. */
	check(port_from(&receiver, "127.0.0.1", PEER, 0, 0) == 0);
	check(passes(&h, "127.0.0.1", PEER, &header, 1400));
	close(h.raw);
	close(h.udp);
	close_pair();
}

/* Writes to the raw packet, sends it, returns whether the counter moved by one. */
static void send_changed(struct hostile *h, size_t n, size_t at, uint8_t xor)
{
	h->packet[at] ^= xor;
	raw_send(h->raw, "127.0.0.1", h->packet, n);
}

void damaged_packets_are_counted_and_never_written(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 2, 0, 1400), bad;
	struct leap_stats stats;
	size_t n, i;

	h.raw = raw_socket();
	open_pair("127.0.0.1", 0);
	memset(receiver.map + LEAP_META_BYTES, 0x5a, LEAP_FRAME_MAX);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 24, 0x80);			/* UDP length, too long */
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 25, 0x08);			/* and too short */
	stats = port_stats(&receiver);
	check(stats.rx_bad_length == 2);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 26, 0x55);			/* checksum */
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, n - 1, 0x01);		/* payload */
	stats = port_stats(&receiver);
	check(stats.rx_bad_checksum == 2);
#define MALFORMED(field, value, bytes)					     \
	do {								     \
		bad = header;						     \
		bad.field = (value);					     \
		n = hostile_packet(&h, "127.0.0.1", PEER, &bad, (bytes));    \
		raw_send(h.raw, "127.0.0.1", h.packet, n);		     \
	} while (0)
	MALFORMED(chunk, cpu_to_le16(2), 1400);
	MALFORMED(chunk, cpu_to_le16(0xffff), 1400);
	MALFORMED(n_chunks, cpu_to_le16(LEAP_MAX_CHUNKS + 1), 1400);
	MALFORMED(n_chunks, 0, 1400);
	MALFORMED(payload_bytes, cpu_to_le16(1401), 1401);
	MALFORMED(payload_bytes, cpu_to_le16(4000), 4000);
	MALFORMED(payload_bytes, cpu_to_le16(1400), 1399);
	MALFORMED(frame_bytes, cpu_to_le32(0xffffffff), 1400);
	MALFORMED(frame_bytes, 0, 1400);
#undef MALFORMED
	stats = port_stats(&receiver);
	check(stats.rx_malformed == 9);
	check(stats.rx_datagrams == 0 && bank_meta(&receiver, 0)->state == LEAP_BANK_FREE);
	for (i = 0; i < LEAP_FRAME_MAX; i++)
		check(receiver.map[LEAP_META_BYTES + i] == 0x5a);
	/* The frame itself still comes, and nothing beside its chunks is written. */
	deliver(0, 2000);
	for (i = 2000; i < LEAP_FRAME_MAX; i++)
		check(receiver.map[LEAP_META_BYTES + i] == 0x5a);
	close(h.raw);
	close_pair();
}

void fragments_go_on(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 1, 0, 1200);
	uint8_t answer[4096];
	struct iphdr *ip = (void *)h.packet;
	size_t n;

	h.raw = raw_socket();
	h.udp = udp_socket("127.0.0.1", HERE);
	open_pair("127.0.0.1", 0);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1200);
	ip->id = htons(77);
	ip->frag_off = htons(0x2000);
	raw_send(h.raw, "127.0.0.1", h.packet, 20 + 808);
	memmove(h.packet + 20, h.packet + 20 + 808, n - 828);
	ip->frag_off = htons(808 / 8);
	raw_send(h.raw, "127.0.0.1", h.packet, n - 808);
	check(recv(h.udp, answer, sizeof(answer), 0) == 1232);
	check(port_stats(&receiver).rx_datagrams == 0);
	close(h.raw);
	close(h.udp);
	close_pair();
}

void a_packet_of_several_datagrams_is_taken_apart(void)
{
	uint8_t packet[5 * (LEAP_HEADER_BYTES + LEAP_SLOT_BYTES)], *at = packet;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(HERE) };
	uint8_t frame[4 * LEAP_SLOT_BYTES + 10];
	int segment = LEAP_HEADER_BYTES + LEAP_SLOT_BYTES, i;
	int fd = udp_socket("127.0.0.1", PEER);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	fill_frame(frame, sizeof(frame), 0);
	for (i = 0; i < 5; i++) {
		uint32_t bytes = i < 4 ? LEAP_SLOT_BYTES : 10;
		struct leap_datagram header = data_header(0, 5, i, bytes);

		header.frame_bytes = cpu_to_le32(sizeof(frame));
		memcpy(at, &header, sizeof(header));
		memcpy(at + sizeof(header), frame + i * LEAP_SLOT_BYTES, bytes);
		at += sizeof(header) + bytes;
	}
	check(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	check(sendto(fd, packet, at - packet, 0, (void *)&to, sizeof(to)) == at - packet);
	check(port_wait(&receiver, 1000000, &bank) == 0 && bank == 0);
	check(is_frame(bank_bytes(&receiver, 0), sizeof(frame), 0));
	/* Older kernels take it apart before the loopback. */
	check(port_stats(&receiver).rx_gso <= 1 && port_stats(&receiver).rx_datagrams == 5);
	/* Segments too short for a header are not. */
	segment = 16;
	check(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	check(sendto(fd, packet, 512, 0, (void *)&to, sizeof(to)) == 512);
	check(port_stats(&receiver).rx_datagrams == 5);
	close(fd);
	close_pair();
}

/* Puts a datagram behind others in a packet. */
static uint8_t *append(uint8_t *at, const struct leap_datagram *header, const uint8_t *payload,
		       uint32_t bytes)
{
	memcpy(at, header, sizeof(*header));
	memcpy(at + sizeof(*header), payload, bytes);
	return at + sizeof(*header) + bytes;
}

/* Datagrams sent in quick succession may come as one packet. */
void what_is_not_ours_in_a_packet_reaches_the_socket(void)
{
	const int segment = LEAP_HEADER_BYTES + LEAP_SLOT_BYTES;
	struct leap_datagram header = data_header(0, 1, 0, LEAP_SLOT_BYTES), ping = header;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(HERE) };
	uint8_t packet[3 * segment], answer[sizeof(packet)], frame[LEAP_SLOT_BYTES], *at;
	int from = udp_socket("127.0.0.1", PEER), socket = udp_socket("127.0.0.1", HERE);
	uint32_t order, bank;
	ssize_t n;

	ping.kind = 2;
	fill_frame(frame, sizeof(frame), 0);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	check(setsockopt(from, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	open_pair("127.0.0.1", 0);
	for (order = 0; order < 2; order++) {
		header.seq = cpu_to_le32(order);
		at = packet;
		/* Ours before another that is shorter, or after one. */
		if (order)
			at = append(at, &ping, frame, LEAP_SLOT_BYTES);
		at = append(at, &header, frame, LEAP_SLOT_BYTES);
		if (!order)
			at = append(at, &ping, frame, 16);
		check(sendto(from, packet, at - packet, 0, (void *)&to, sizeof(to)) == at - packet);
		check(port_wait(&receiver, 1000000, &bank) == 0 && bank == order);
		check(is_frame(bank_bytes(&receiver, bank), sizeof(frame), 0));
		do {
			n = recv(socket, answer, sizeof(answer), 0);
			check(n > 0);
		} while (((struct leap_datagram *)answer)->kind != ping.kind);
	}
	check(port_stats(&receiver).rx_malformed == 0 && port_stats(&receiver).rx_datagrams == 2);
	close(from);
	close(socket);
	close_pair();
}
