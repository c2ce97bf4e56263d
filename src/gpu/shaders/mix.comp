#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// The weighted sum of the outputs of each row's experts.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push { Floats outputs; Floats weights; Floats y; uint dim; uint n_active; };
void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= dim) return;
    float sum = 0.0;
    for (uint use = row * n_active; use < (row + 1u) * n_active; use++)
        sum = add(sum, mul(weights.at[use], outputs.at[use * dim + i]));
    y.at[row * dim + i] = sum;
}
