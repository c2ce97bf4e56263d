// Parts of attention to int8 keys and values. A workgroup has 128 threads, and `query` holds the query.
shared uint query_codes[128];
shared float query_scales[16];
shared float products[32];
shared uint codes[32];
shared float code_step;

// Quantises the query in groups, like activations.
void quantize_query(uint t, uint head_dim) {
    if (t < groups_of(head_dim, KEY_GROUP)) {
        uint most = 0u;
        for (uint i = 0u; i < KEY_GROUP; i++) {
            uint c = t * KEY_GROUP + i;
            if (c < head_dim) most = max(most, bits(query[c]) & MAGNITUDE);
        }
        float scale = divide(number(most), 127.0);
        float inverse = divide(1.0, scale);
        bool is_finite = most < INFINITE;
        bool has_codes = is_finite && (bits(inverse) & MAGNITUDE) < INFINITE;
        query_scales[t] = has_codes ? scale : is_finite ? 0.0 : number(NOT_A_NUMBER);
        for (uint i = 0u; i < KEY_GROUP / 4u; i++) {
            uint word = 0u;
            for (uint j = 0u; j < 4u; j++) {
                uint c = t * KEY_GROUP + 4u * i + j;
                if (has_codes && c < head_dim) word |= code_of(query[c], inverse) << (8u * j);
            }
            query_codes[t * (KEY_GROUP / 4u) + i] = word;
        }
    }
}

// The sum of a group's products for a position, times the key's scale.
float key_product(uint64_t keys, uint group, uint position, uint head_dim) {
    Words lines = Words(keys + uint64_t(group * KEY_LINES * LINE_BYTES));
    uint quads = min(KEY_GROUP, padded(head_dim) - group * KEY_GROUP) / 4u;
    int sum = 0;
    for (uint quad = 0u; quad < quads; quad++) {
        uint line = 1u + 2u * quad + position / 16u;
        sum += dot_of(lines.at[line * LINE_WORDS + position % 16u], query_codes[group * (KEY_GROUP / 4u) + quad]);
    }
    return mul(from_int(sum), scale_at(lines, position));
}

// Sets the codes of a block's weights times the scales of a group of values.
void set_codes(uint t, uint64_t values, uint group, float weight) {
    Words scales = Words(values + uint64_t(group * VALUE_LINES * LINE_BYTES));
    barrier();
    if (t < 32u) products[t] = is_zero(weight) ? 0.0 : mul(weight, scale_at(scales, t));
    barrier();
    if (t < 32u) {
        uint most = 0u;
        for (uint i = 0u; i < 32u; i++) most = max(most, bits(products[i]) & MAGNITUDE);
        // 2^-100.
        bool is_nothing = most < 27u << 23;
        float factor = is_nothing ? 0.0 : divide(16383.0, number(most));
        codes[t] = bits(add(mul(products[t], factor), ROUND)) & 0x3fffu;
        if (t == 0u) code_step = is_nothing ? 0.0 : divide(number(most), 16383.0);
    }
    barrier();
}

// The sum of a column's values times codes.
float value_product(uint64_t values, uint column) {
    Words lines = Words(values + uint64_t(column / VALUE_GROUP * VALUE_LINES * LINE_BYTES));
    uint tile = column % VALUE_GROUP / 16u;
    int sum = 0;
    for (uint j = 0u; j < 8u; j++) {
        int word = int(lines.at[(1u + tile * 8u + j) * LINE_WORDS + column % 16u]);
        for (int i = 0; i < 4; i++) sum += bitfieldExtract(word, 8 * i, 8) * int(codes[4u * j + uint(i)]);
    }
    return from_int(sum);
}
