#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "states.glsl"
// The gated delta rule, see `delta_rule` in kernels/recurrence.rs: a workgroup takes a unit of columns through a run, a
// thread each column. The update of a row's state and the next row's sums are one loop over the state.
layout(local_size_x = 32) in;
layout(push_constant) uniform Push {
    Floats convolved;    // [rows, channels]: queries, keys, values
    Floats controls;     // strengths and decays
    Floats overlaps;     // [rows, key_heads]
    Floats outputs;      // [rows, heads * value_dim]
    uint64_t states;
    Runs runs;
    Steps steps;
    uint channels;
    uint controls_width;
    uint slot_len;
    uint history_len;
    uint columns;        // of a unit
    uint key_heads;
    uint key_dim;
    uint heads;
    uint value_dim;
    uint is_tiled;
};
void main() {
    uint unit = gl_WorkGroupID.x, column = gl_LocalInvocationID.x;
    if (column >= columns) return;
    Run run = runs.at[gl_WorkGroupID.y];
    uint units_of_head = value_dim / columns, head = unit / units_of_head;
    uint value = head * value_dim + unit % units_of_head * columns + column;
    uint key_head = is_tiled != 0u ? head % key_heads : head / (heads / key_heads);
    uint offset = history_len + unit * key_dim * columns + column;
    bool is_empty = run.from == NONE;
    Floats from = slot_at(states, is_empty ? run.to : run.from, slot_len, offset);
    Floats to = slot_at(states, run.to, slot_len, offset);
    float difference = 0.0, decay = 0.0;
    for (uint row = run.first; row <= run.end; row++) {
        bool is_first = row == run.first, is_last = row == run.end;
        bool is_old = row - run.first < 2u;
        uint checkpoint = is_first ? NONE : steps.at[row - 1u].checkpoint;
        Floats kept = slot_at(states, checkpoint == NONE ? run.to : checkpoint, slot_len, offset);
        uint query = row * channels + key_head * key_dim, key = query + key_heads * key_dim;
        float by_key = 0.0, by_query = 0.0;
        for (uint i = 0u; i < key_dim; i++) {
            uint at = i * columns;
            float s = 0.0;
            if (!is_old) s = to.at[at];
            else if (!is_empty) s = from.at[at];
            if (!is_first) {
                s = fused(convolved.at[key - channels + i], difference, mul(decay, s));
                to.at[at] = s;
                if (checkpoint != NONE) kept.at[at] = s;
            }
            if (!is_last) {
                by_key = fused(convolved.at[key + i], s, by_key);
                by_query = fused(convolved.at[query + i], s, by_query);
            }
        }
        if (is_last) return;
        uint control = steps.at[row].source * controls_width + head;
        float strength = controls.at[control];
        decay = controls.at[control + heads];
        float v = convolved.at[row * channels + 2u * key_heads * key_dim + value];
        difference = mul(strength, fused(negative(decay), by_key, v));
        float overlap = overlaps.at[row * key_heads + key_head];
        outputs.at[row * heads * value_dim + value] = fused(overlap, difference, mul(decay, by_query));
    }
}
