// SPDX-License-Identifier: GPL-2.0
/* Compiles if there is vm_flags_clear(); then vm_flags is not to be written. */
#include <linux/mm.h>

void leap_probe(struct vm_area_struct *vma);

void leap_probe(struct vm_area_struct *vma)
{
	vm_flags_clear(vma, VM_MAYEXEC);
}
