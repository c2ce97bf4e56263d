#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "states.glsl"
// Mamba-2's state space, see `scan` in kernels/recurrence.rs: a workgroup takes a unit of columns through a run, a
// thread each column.
layout(local_size_x = 32) in;
layout(push_constant) uniform Push {
    Floats convolved;    // [rows, channels]: inputs of heads, then what groups write, and what they read
    Floats controls;     // steps
    Floats decays;       // [heads]
    Floats skips;        // [heads]
    Floats outputs;      // [rows, heads * head_dim]
    uint64_t states;
    Runs runs;
    Steps steps;
    uint channels;
    uint controls_width;
    uint slot_len;
    uint history_len;
    uint columns;        // of a unit
    uint heads;
    uint head_dim;
    uint groups;
    uint state_dim;
};
void main() {
    uint unit = gl_WorkGroupID.x, column = gl_LocalInvocationID.x;
    if (column >= columns) return;
    Run run = runs.at[gl_WorkGroupID.y];
    uint units_of_head = head_dim / columns, head = unit / units_of_head;
    uint input_at = head * head_dim + unit % units_of_head * columns + column;
    uint write_at = heads * head_dim + head / (heads / groups) * state_dim, read_at = write_at + groups * state_dim;
    uint offset = history_len + unit * state_dim * columns + column;
    bool is_empty = run.from == NONE;
    Floats from = slot_at(states, is_empty ? run.to : run.from, slot_len, offset);
    Floats to = slot_at(states, run.to, slot_len, offset);
    for (uint row = run.first; row < run.end; row++) {
        uint checkpoint = steps.at[row].checkpoint;
        Floats kept = slot_at(states, checkpoint == NONE ? run.to : checkpoint, slot_len, offset);
        float step = controls.at[steps.at[row].source * controls_width + head];
        float old = exp_within(mul(decays.at[head], step));
        uint base = row * channels;
        float v = convolved.at[base + input_at], scaled = mul(step, v);
        float sum = 0.0;
        for (uint i = 0u; i < state_dim; i++) {
            uint at = i * columns;
            float s = 0.0;
            if (row != run.first) s = to.at[at];
            else if (!is_empty) s = from.at[at];
            s = fused(convolved.at[base + write_at + i], scaled, mul(old, s));
            to.at[at] = s;
            if (checkpoint != NONE) kept.at[at] = s;
            sum = fused(convolved.at[base + read_at + i], s, sum);
        }
        outputs.at[row * heads * head_dim + input_at] = fused(skips.at[head], v, sum);
    }
}
