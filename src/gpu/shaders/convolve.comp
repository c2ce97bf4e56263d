#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "states.glsl"
// The causal convolution of rows, see `convolve` in kernels/recurrence.rs.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats inputs;
    uint64_t states;
    Runs runs;
    Steps steps;
    Floats taps;       // [n_taps, channels]
    Floats bias;
    Floats y;          // [rows, channels]
    uint channels;
    uint width;        // of a row of inputs, and the column of its first channel
    uint column;
    uint slot_len;
    uint n_taps;
    uint features;     // BIAS, ACTIVATED
};
const uint BIAS = 1u, ACTIVATED = 2u;
void main() {
    uint c = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (c >= channels) return;
    Run run = runs.at[steps.at[row].run];
    float sum = 0.0;
    for (uint tap = 0u; tap < n_taps; tap++) {
        // The tap's row, counted from the first of those before the run that the state keeps.
        uint at = row - run.first + tap;
        float v = 0.0;
        if (at >= n_taps - 1u) v = inputs.at[steps.at[run.first + at - (n_taps - 1u)].source * width + column + c];
        else if (run.from != NONE) v = slot_at(states, run.from, slot_len, at * channels).at[c];
        float weight = taps.at[tap * channels + c];
        sum = tap == 0u ? mul(v, weight) : fused(v, weight, sum);
    }
    if ((features & BIAS) != 0u) sum = add(sum, bias.at[c]);
    if ((features & ACTIVATED) != 0u) sum = divide(sum, add(1.0, exp_within(negative(sum))));
    y.at[row * channels + c] = sum;
}
