#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Activations of gate and up, see src/model/activation.rs.
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint ACTIVATION = 0u;
const uint SILU = 0u, GELU_TANH = 1u, CLAMPED_SILU = 2u;
layout(push_constant) uniform Push { Floats gate_up; Floats y; uint width; float limit; };
void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= width) return;
    uint at = row * 2u * width + i;
    float gate = gate_up.at[at], up = gate_up.at[at + width];
    if (ACTIVATION == GELU_TANH) {
        float near = within(gate, -1e6, 1e6);
        float slope = mul(1.595769, add(1.0, mul(0.044715, mul(near, near))));
        gate = mul(gate, slope);
        up = divide(up, slope);
    }
    if (ACTIVATION == CLAMPED_SILU) {
        if (is_less(limit, gate)) gate = limit;
        gate = mul(1.702, gate);
        up = divide(add(within(up, negative(limit), limit), 1.0), 1.702);
    }
    y.at[row * width + i] = swiglu(gate, up);
}
