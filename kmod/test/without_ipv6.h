/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Included ahead of all files but the kernel's configuration: what they are like where that has no IPv6, nor
 * those of its parts that the headers ask for.
 */
#undef CONFIG_IPV6
#undef CONFIG_IPV6_MODULE
#undef CONFIG_IPV6_MROUTE
#undef CONFIG_IPV6_MULTIPLE_TABLES
#undef CONFIG_IPV6_SEG6_LWTUNNEL
#undef CONFIG_IPV6_SUBTREES
