//! Chat templates with the constructs of the published ones, tools included, and how they are recognised.

use serde_json::{Value, json};

use super::super::template::recognise;
use super::{Folder, byte_level_json};
use crate::format::{ChatTemplate, SystemTexts};

/// SmolLM3: marks of training, methods of strings, a name that may not be defined, tools by slices.
const SMOLLM3: &str = r###"{# ───── mode ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{{- "<|im_start|>system\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set told = messages[0].content -%}
  {%- if "/no_think" in told -%}
    {%- set mode = "/no_think" -%}
  {%- elif "/think" in told -%}
    {%- set mode = "/think" -%}
  {%- endif -%}
  {%- set custom = told.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in told -%}
{{- custom.replace("/system_override", "").rstrip() -}}
{{- "<|im_end|>\n" -}}
{%- else -%}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "## Metadata\n\nToday: " ~ today ~ "\nMode: " + mode + "\n\n" -}}
{%- if custom -%}
{{- custom + "\n\n" -}}
{%- elif mode == "/think" -%}
{{- "You think.\n\n" -}}
{%- else -%}
{{- "You do not.\n\n" -}}
{%- endif -%}
{%- if xml_tools or python_tools -%}
  {%- set ns = namespace(text="<tools>\n") -%}
  {%- for tool in xml_tools[:] -%} {# a list #}
    {%- set ns.text = ns.text ~ (tool | string) ~ "\n" -%}
  {%- endfor -%}
  {{- ns.text + "</tools>{\"name\": 1}<|im_end|>\n" -}}
{%- endif -%}
{%- endif -%}
{# ───── turns ───── #}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if mode == "/think" -%}
      {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
    {%- else -%}
      {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
    {%- endif -%}
    {% endgeneration %}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\n" + ("" if mode == "/think" else "<think>\n\n</think>\n") }}
{%- endif -%}
"###;

/// Qwen 3: the last question found from behind, thoughts cut off; `PROMPT` is what releases differ in.
const QWEN3: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(is_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.is_step and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.is_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set thoughts = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {{- call.arguments | tojson }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}PROMPT
{%- endif %}"#;

/// The question of [`QWEN3`]'s first release: may the model think?
const MAY_THINK: &str = r"
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}";

/// Granite 3.1 to 3.3: line breaks in strings, documents and controls that are not defined.
const GRANITE: &str = r#"{%- if tools and not available_tools -%}
    {%- set available_tools = tools -%}
{%- endif -%}
{%- if messages[0]['role'] == 'system' %}
     {%- set told = messages[0]['content'] %}
     {%- set rest = messages[1:] %}
 {%- else %}
     {%- set told = "Today's Date: " + strftime_now('%B %d, %Y') + "." %}
     {%- if available_tools and documents %}
         {%- set told = told + " Tools and documents." %}
     {%- elif thinking %}
    {%- set told = told + " Thoughts." %}
     {%- else %}
         {%- set told = told + " Be helpful." %}
     {%- endif %}
     {%- if 'citations' in controls and documents %}
         {%- set told = told + ' Cite.' %}
     {%- endif %}
     {%- set rest = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + told + '<|end_of_text|>
' }}
 {%- if available_tools %}
     {{- available_tools | tojson(indent=4) }}
 {%- endif %}
 {%- if documents %}
     {%- for document in documents %}
         {{- '<|start_of_role|>document {"id": "' + document['id'] | string + '"}<|end_of_role|>
' }}
     {%- endfor %}
 {%- endif %}
 {%- for message in rest %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
     {%- if loop.last and add_generation_prompt %}
         {{- '<|start_of_role|>assistant' }}
             {%- if controls %}
                 {{- ' ' + controls | tojson()}}
             {%- endif %}
         {{- '<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}
"#;

/// Gemma 3: exceptions where turns do not alternate, contents that are lists.
const GEMMA: &str = r#"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set before = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set before = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set before = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("no turns") }}
    {%- endif -%}
    {%- set role = "model" if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (before if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {{ '<start_of_image>' if item['type'] == 'image' else item['text'] | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("no content") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"#;

/// Phi-4-mini: tools beside the system's text.
const PHI4: &str = r#"{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"#;

/// gpt-oss: macros that call themselves and each other, names set within one, the last call remembered.
const HARMONY: &str = r##"{#- Inputs: "builtin_tools", "reasoning_effort". -#}
{%- macro kind_of(spec, required, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- set inner = kind_of(spec['items'], required) -%}
        {{- "any[]" if inner == "object" or inner|length > 50 else inner + "[]" }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.properties -%}
        {%- for name, inner in spec.properties.items() -%}
            {{- name if name in (spec.required or []) else name + "?" }}
            {{ kind_of(inner, spec.required or []) }}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro told() -%}
    {%- if identity is not defined %}
        {%- set identity = "You are nobody." %}
    {%- endif %}
    {{- identity + "\nCurrent date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n" }}
    {%- if builtin_tools %}
        {%- set available = namespace(browser=false) %}
        {%- for tool in builtin_tools %}
            {%- if tool == "browser" %}
                {%- set available.browser = true %}
            {%- endif %}
        {%- endfor %}
    {%- endif -%}
    {{- "# Channels: `【6†L9】`." }}
    {%- if tools -%}
        {{- "\nTools." }}
    {%- endif -%}
{%- endmacro -%}

{{- "<|start|>system<|message|>" }}
{{- told() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set developer = "" %}
    {%- set rest = messages %}
{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer %}
        {{- "# Instructions\n\n" }}
        {{- developer }}
        {{- "\n\n" }}
    {%- endif %}
    {%- if tools -%}
        {{- kind_of(tools[0], []) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "<|channel|>final<|message|>" in message.content %}
            {{- raise_exception("channels in a message") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- for later in rest[loop.index:] %}
                {%- set last_call.name = later.name %}
            {%- endfor %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {{- "<|start|>functions." + last_call.name + message.content|tojson }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"##;

#[test]
fn constructs_of_published_templates_are_run() {
    let date = |format: &str| format!("\u{2}{format}\u{3}");
    let texts = |head: &str, default: Option<&str>, tail: &str, prompt: &str| SystemTexts {
        head: head.to_owned(),
        default: default.map(str::to_owned),
        skips_empty: false,
        tail: tail.to_owned(),
        prompt: prompt.to_owned(),
    };
    let plain = SystemTexts::default();
    let smollm3 = |mode: &str, default: &str, prompt: &str| {
        let head = format!("## Metadata\n\nToday: {}\nMode: {mode}\n\n", date("%d %B %Y"));
        SystemTexts { skips_empty: true, ..texts(&head, Some(default), "\n\n", prompt) }
    };
    let granite = format!("Today's Date: {}. Be helpful.", date("%B %d, %Y"));
    let granite = texts("", Some(&granite), "", "");
    let harmony = format!(
        "<|start|>system<|message|>You are nobody.\nCurrent date: {}\n\nReasoning: {}\n\n\
         # Channels: `【6†L9】`.<|end|>",
        date("%Y-%m-%d"),
        date("reasoning_effort")
    );
    let harmony = SystemTexts { skips_empty: true, ..texts(&harmony, None, "\n\n", "") };
    let no_thoughts = "<think>\n\n</think>\n";
    let qwen3 = |prompt: &str| QWEN3.replace("PROMPT", prompt);
    let always = qwen3("").replace("assistant\\n' }}", "assistant\\n<think>\\n' }}");
    for (jinja, template, thinking, quiet) in [
        (
            SMOLLM3,
            ChatTemplate::SmolLm3,
            smollm3("/think", "You think.", ""),
            smollm3("/no_think", "You do not.", no_thoughts),
        ),
        (
            &qwen3(MAY_THINK),
            ChatTemplate::Qwen3,
            plain.clone(),
            texts("", None, "", "<think>\n\n</think>\n\n"),
        ),
        (&qwen3(""), ChatTemplate::Qwen3, plain.clone(), plain.clone()),
        (
            &always,
            ChatTemplate::Qwen3,
            texts("", None, "", "<think>\n"),
            texts("", None, "", "<think>\n"),
        ),
        (GRANITE, ChatTemplate::Granite, granite.clone(), granite),
        (GEMMA, ChatTemplate::Gemma, plain.clone(), plain.clone()),
        (PHI4, ChatTemplate::Phi4, plain.clone(), plain),
        (HARMONY, ChatTemplate::Harmony, harmony.clone(), harmony),
    ] {
        let known = recognise(jinja, "<bos>").unwrap();
        assert_eq!(known.template, template);
        assert_eq!([known.texts.thinking, known.texts.quiet], [thinking, quiet]);
        assert_eq!(known.writes_bos, template == ChatTemplate::Gemma);
    }
}

/// The library tokenizers ignores these settings.
#[test]
fn what_makes_no_difference_in_a_folder_does_not_refuse_it() {
    let imported = |change: fn(&mut Value)| {
        let mut json = byte_level_json();
        change(&mut json);
        let folder = Folder::new(&[("tokenizer.json", json.to_string().as_bytes())]);
        folder.import().unwrap()
    };
    let plain = imported(|_| {});
    let harmless: [fn(&mut Value); 5] = [
        |json: &mut Value| json["model"]["byte_fallback"] = true.into(),
        |json| json["added_tokens"][0]["id"] = 1.into(),
        |json| json["normalizer"] = json!({"type": "Sequence", "normalizers": []}),
        |json| {
            let steps = std::mem::take(&mut json["pre_tokenizer"]["pretokenizers"]);
            let inner = json!({"type": "Sequence", "pretokenizers": steps});
            json["pre_tokenizer"]["pretokenizers"] = json!([inner]);
        },
        |json| json["added_tokens"].as_array_mut().unwrap().push(json!({"id": 9, "content": ""})),
    ];
    for change in harmless {
        assert_eq!(imported(change).file, plain.file);
    }
}

/// Python takes a value of any type for true or false. A token or a template of another type is ignored.
#[test]
fn settings_of_another_type_are_read_as_transformers_reads_them() {
    let bos = |config: &str| {
        let files = [
            ("tokenizer.json", byte_level_json().to_string().into_bytes()),
            ("tokenizer_config.json", config.as_bytes().to_vec()),
        ];
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        Folder::new(&files).import().unwrap().file.bos
    };
    for (config, writes_bos) in [
        (r#"{"add_bos_token": "true"}"#, true),
        (r#"{"add_bos_token": 1}"#, true),
        (r#"{"add_bos_token": 0}"#, false),
        (r#"{"add_bos_token": "false"}"#, false),
        (r#"{"add_bos_token": null, "chat_template": 3, "eos_token": 7}"#, true),
        (r#"{"chat_template": {"tools": "x", "default": "y"}, "bos_token": ["a"]}"#, true),
        (r#"{"bos_token": null, "chat_template": null}"#, false),
    ] {
        assert_eq!(bos(config).is_some(), writes_bos, "{config}");
    }
}
