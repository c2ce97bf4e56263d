// Keys and values as int8, see kernels/kv8/mod.rs: lines of 64 bytes, in blocks of 32 positions. Groups of 32 columns
// of keys, and of 128 columns of values, have a scale for each position.
const uint KEY_GROUP = 32u, VALUE_GROUP = 128u;
const uint LINE_BYTES = 64u, LINE_WORDS = 16u;
// Lines of a whole group.
const uint KEY_LINES = 17u, VALUE_LINES = 65u;
const float ROUND = 12582912.0;
const float STORED_MAX = 65504.0;

uint padded(uint head_dim) { return (head_dim + 15u) / 16u * 16u; }
uint groups_of(uint head_dim, uint group) { return (padded(head_dim) + group - 1u) / group; }
// Lines of a head's block.
uint block_lines(uint head_dim, uint group) { return groups_of(head_dim, group) + padded(head_dim) / 2u; }

// Address of a head's block of keys, and of values, in the page that begins at the unit `page`. A page has two blocks.
uint64_t key_block(uint64_t kv, uint64_t page, uint head, uint block, uint head_dim) {
    uint lines = block_lines(head_dim, KEY_GROUP);
    return kv + (page + uint64_t((2u * head + block % 2u) * lines)) * uint64_t(LINE_BYTES);
}
uint64_t value_block(uint64_t kv, uint64_t page, uint n_heads, uint head, uint block, uint head_dim) {
    uint keys = 2u * n_heads * block_lines(head_dim, KEY_GROUP);
    uint lines = block_lines(head_dim, VALUE_GROUP);
    return kv + (page + uint64_t(keys + (2u * head + block % 2u) * lines)) * uint64_t(LINE_BYTES);
}

// The scale of a position in a line of scales.
float scale_at(Words line, uint position) {
    uint word = line.at[position / 2u];
    return widened((position & 1u) == 0u ? word & 0xffffu : word >> 16);
}

// The code of a value, in the low byte.
uint code_of(float x, float inverse) { return bits(add(mul(x, inverse), ROUND)) & 0xffu; }

// The sum of products of four bytes each.
int dot_of(uint a, uint b) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += bitfieldExtract(int(a), 8 * i, 8) * bitfieldExtract(int(b), 8 * i, 8);
    return sum;
}
