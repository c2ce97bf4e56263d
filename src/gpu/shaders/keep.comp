#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "states.glsl"
// Keeps the last inputs of the convolution behind each run and at its checkpoints, and the rows of runs that may be taken
// back: a thread for each channel of a run.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats inputs;
    Floats controls;
    Floats journals;   // [stream, journal_rows, channels + n_controls]
    uint64_t states;
    Runs runs;
    Steps steps;
    uint channels;
    uint width;        // of a row of inputs, and the column of its first channel
    uint column;
    uint slot_len;
    uint n_kept;       // inputs that a state keeps
    uint n_controls;
    uint journal_rows;
};
Run run;
uint c;

// Writes the history behind row `end - 1` to a slot. It may be the slot that the run continues: a later input takes the
// place of an earlier one, which was read.
void keep(uint end, uint slot) {
    for (uint index = 0u; index < n_kept; index++) {
        uint at = end - run.first + index;
        float v = 0.0;
        if (at >= n_kept) v = inputs.at[steps.at[run.first + at - n_kept].source * width + column + c];
        else if (run.from != NONE) v = slot_at(states, run.from, slot_len, at * channels).at[c];
        slot_at(states, slot, slot_len, index * channels).at[c] = v;
    }
}

void main() {
    c = gl_GlobalInvocationID.x;
    run = runs.at[gl_WorkGroupID.y];
    if (c >= channels + n_controls) return;
    if (run.journal != NONE) {
        uint journal_width = channels + n_controls;
        for (uint row = run.first; row < run.end; row++) {
            uint to = (run.journal * journal_rows + row - run.first) * journal_width + c, from = steps.at[row].source;
            journals.at[to] = c < channels ? inputs.at[from * width + column + c]
                : controls.at[from * n_controls + c - channels];
        }
    }
    if (c >= channels) return;
    for (uint row = run.first; row < run.end; row++) {
        uint checkpoint = steps.at[row].checkpoint;
        if (checkpoint != NONE) keep(row + 1u, checkpoint);
    }
    keep(run.end, run.to);
}
