// States of recurrent layers, see src/gpu/states.rs. A state is in a slot: first the last inputs of the convolution, the
// oldest first, then for each unit of columns a matrix.
struct Run {
    uint from;      // slot of the state before the run; NONE for the zeros before a text
    uint to;        // slot of the state behind it
    uint first;     // first row, and the row behind the last one
    uint end;
    uint journal;   // index of the journal that keeps the rows; NONE if none does
    uint zeros[3];
};
struct Step {
    uint source;       // the row's place in the inputs of the convolution, and in the controls
    uint run;
    uint checkpoint;   // slot that keeps the state behind the row; NONE if none does
    uint zero;
};
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Runs { Run at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Steps { Step at[]; };

const uint NONE = 0xffffffffu;

// The values of a slot from `offset` on.
Floats slot_at(uint64_t states, uint slot, uint slot_len, uint offset) {
    return Floats(states + (uint64_t(slot) * uint64_t(slot_len) + uint64_t(offset)) * 4ul);
}
