// Makes tests/golden/go-templates.json: go run scripts/make-go-template-fixtures.go > tests/golden/go-templates.json
//
// Chat templates in Go's language, conversations, and the texts that Go's package text/template makes of them, run as
// Ollama runs templates: texts of system messages are joined, messages in a row of one role are one, and templates
// without .Messages run once for each exchange.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"
	"text/template/parse"
)

type args map[string]any

func (a args) String() string {
	if a == nil {
		return "{}"
	}
	b, _ := json.Marshal(map[string]any(a))
	return string(b)
}

type callFunction struct {
	Name      string `json:"name"`
	Arguments args   `json:"arguments"`
}
type call struct {
	ID       string       `json:"id,omitempty"`
	Function callFunction `json:"function"`
}
type prop struct {
	Type        string `json:"type,omitempty"`
	Description string `json:"description,omitempty"`
	Enum        []any  `json:"enum,omitempty"`
}
type props map[string]prop

func (p props) String() string { b, _ := json.Marshal(map[string]prop(p)); return string(b) }

type params struct {
	Type       string   `json:"type"`
	Required   []string `json:"required,omitempty"`
	Properties props    `json:"properties"`
}

func (p params) String() string { b, _ := json.Marshal(p); return string(b) }

type toolFunction struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Parameters  params `json:"parameters"`
}

func (p toolFunction) String() string { b, _ := json.Marshal(p); return string(b) }

type tool struct {
	Type     string       `json:"type"`
	Function toolFunction `json:"function"`
}

func (p tool) String() string { b, _ := json.Marshal(p); return string(b) }

type tools []tool

func (p tools) String() string { b, _ := json.Marshal([]tool(p)); return string(b) }

type message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	Thinking   string `json:"thinking,omitempty"`
	ToolCalls  []call `json:"tool_calls,omitempty"`
	ToolName   string `json:"name,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}
type talk struct {
	Messages []message `json:"messages"`
	Tools    tools     `json:"tools,omitempty"`
	Think    *bool     `json:"enable_thinking,omitempty"`
}

func idents(n parse.Node, found map[string]bool) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, c := range n.Nodes {
			idents(c, found)
		}
	case *parse.ActionNode:
		idents(n.Pipe, found)
	case *parse.IfNode:
		idents(n.Pipe, found)
		idents(n.List, found)
		idents(n.ElseList, found)
	case *parse.RangeNode:
		idents(n.Pipe, found)
		idents(n.List, found)
		idents(n.ElseList, found)
	case *parse.WithNode:
		idents(n.Pipe, found)
		idents(n.List, found)
		idents(n.ElseList, found)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			for _, a := range c.Args {
				idents(a, found)
			}
		}
	case *parse.FieldNode:
		for _, i := range n.Ident {
			found[strings.ToLower(i)] = true
		}
	case *parse.VariableNode:
		for _, i := range n.Ident {
			found[strings.ToLower(i)] = true
		}
	}
}

// cutPipe tells whether a .Response is written, behind which all is left out.
func cutPipe(n *parse.PipeNode, cut *bool) {
	for _, c := range n.Cmds {
		for _, a := range c.Args {
			m := map[string]bool{}
			idents(a, m)
			if p, ok := a.(*parse.PipeNode); ok {
				idents(p, m)
			}
			if m["response"] {
				*cut = true
			}
		}
	}
}
func cutList(n *parse.ListNode, cut *bool) {
	if n == nil {
		return
	}
	var kept []parse.Node
	for _, c := range n.Nodes {
		if *cut {
			break
		}
		switch c := c.(type) {
		case *parse.ActionNode:
			cutPipe(c.Pipe, cut)
		case *parse.IfNode:
			cutList(c.List, cut)
			cutList(c.ElseList, cut)
		case *parse.RangeNode:
			cutList(c.List, cut)
			cutList(c.ElseList, cut)
		case *parse.WithNode:
			cutList(c.List, cut)
			cutList(c.ElseList, cut)
		}
		kept = append(kept, c)
	}
	n.Nodes = kept
}

var funcs = template.FuncMap{
	"json":        func(v any) string { b, _ := json.Marshal(v); return string(b) },
	"currentDate": func(...string) string { return "2026-03-09" },
}

func run(text string, t talk) (string, error) {
	tm, err := template.New("").Option("missingkey=zero").Funcs(funcs).Parse(text)
	if err != nil {
		return "", err
	}
	found := map[string]bool{}
	idents(tm.Root, found)
	if !found["messages"] && !found["response"] {
		tm, _ = template.New("").Option("missingkey=zero").Funcs(funcs).Parse(text + "{{ .Response }}")
	}
	var system []string
	var msgs []*message
	for i := range t.Messages {
		m := t.Messages[i]
		if m.Role == "system" {
			system = append(system, m.Content)
		}
		if len(msgs) > 0 && msgs[len(msgs)-1].Role == m.Role && m.Role != "tool" {
			msgs[len(msgs)-1].Content += "\n\n" + m.Content
		} else {
			msgs = append(msgs, &m)
		}
	}
	think := t.Think != nil && *t.Think
	var b bytes.Buffer
	if found["messages"] {
		err := tm.Execute(&b, map[string]any{"System": strings.Join(system, "\n\n"), "Messages": msgs, "Tools": t.Tools,
			"Response": "", "Think": think, "ThinkLevel": "", "IsThinkSet": t.Think != nil})
		return b.String(), err
	}
	sys, prompt, response := "", "", ""
	ex := func(tm *template.Template) error {
		err := tm.Execute(&b, map[string]any{"System": sys, "Prompt": prompt, "Response": response,
			"Think": think, "ThinkLevel": "", "IsThinkSet": t.Think != nil})
		sys, prompt, response = "", "", ""
		return err
	}
	for _, m := range msgs {
		switch m.Role {
		case "system":
			if prompt != "" || response != "" {
				if err := ex(tm); err != nil {
					return "", err
				}
			}
			sys = m.Content
		case "user":
			if response != "" {
				if err := ex(tm); err != nil {
					return "", err
				}
			}
			prompt = m.Content
		case "assistant":
			response = m.Content
		}
	}
	last, _ := tm.Clone()
	root := last.Root.Copy().(*parse.ListNode)
	cut := false
	cutList(root, &cut)
	last = template.Must(template.New("").Option("missingkey=zero").Funcs(funcs).AddParseTree("", &parse.Tree{Root: root}))
	err = ex(last)
	return b.String(), err
}

const chatml = `{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
`

const bare = `{{- if .System }}Rules: {{ .System }}
{{ end }}Q: {{ .Prompt }}
A:`

const tooled = `{{- /* The last question is the one that may think. */ -}}
{{- $asked := -1 -}}
{{- range $i, $m := .Messages }}{{ if eq $m.Role "user" }}{{ $asked = $i }}{{ end }}{{ end -}}
{{- if or .System .Tools }}<sys>{{ .System }}
{{- if .Tools }}
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
{{ json .Tools }} {{ .Tools | json | len | lt 0 }}
{{- range .Tools }}
def {{ .Function.Name }}(
{{- range $name, $p := .Function.Parameters.Properties }}{{ $name }}: {{ $p.Type }} {{ $p.Enum }}, {{ else }}nothing{{ end }}): {{ .Function.Parameters.Required }}
{{- end }}
{{- end }}</sys>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<user>{{ .Content }}
{{- if and $.IsThinkSet (eq $i $asked) }}{{ if $.Think }} /think{{ else }} /no_think{{ end }}{{ end }}</user>
{{ else if eq .Role "assistant" }}<model>{{ if and .Thinking (or $last (gt $i $asked)) }}<think>{{ .Thinking }}</think>{{ end }}
{{- with .Content }}{{ . }}{{ end }}
{{- range .ToolCalls }}
<call>{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</call>
{{- end }}{{ if not $last }}</model>
{{ end }}
{{- else if eq .Role "tool" }}<result of="{{ .ToolName }}">{{ .Content }}</result>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<model>{{ end }}
{{- end }}`

const odd = `{{/* all else */}}{{ with .System }}[{{ . }}]{{ else }}none{{ end }}
{{ range $m := .Messages }}{{ with $x := $m.Content }}{{ printf "%s-%d %v" $x 3 $.System }}{{ end }}{{ print "q\"\\" }}{{ "a" }}
  {{- if eq $m.Role "tool" "user" }} TU {{ else if .ToolCalls }}{{ range .ToolCalls }}{{ .ID }}={{ range $k, $v := .Function.Arguments }}{{ $k }}:{{ $v }};{{ end }}{{ end }}{{ else }}else{{ end }}
{{ else }}empty
{{ end }}{{ (index .Messages 0).Role | printf "%s!" }}{{ if not .Tools }}no tools{{ end }}{{ currentDate }} {{ true }} {{ 12 }}
{{- range .Messages }}{{ if eq .Role "assistant" }}{{ break }}{{ else if ge (len .Content) 9 }}{{ continue }}{{ end }}{{ .Content }}{{ end }}
{{- if and (le 1 1) (not (ne 1 1)) }}.{{ end }}
`

const asking = `{{ if and .Prompt (not .Response) }}<user>{{ .Prompt }}<model>{{ else }}{{ with .Response }}{{ . }}{{ end }}{{ end }}
{{- if .First }}first{{ end }}{{ if .Tools }}tools{{ end }}{{ if .Response }}[old]{{ end }}<end>{{ .Response }}</end>
`

const named = `{{ range .Tools }}{{ with .Function.Parameters.Properties }}{{ range $k, $v := . }}{{ $k }}={{ $v.Type }};{{ end }}{{ end }}
{{- $all := .Function.Parameters.Properties }}{{ range $k, $v := $all }}{{ print $k ": " $v.Type 1 2 }}{{ end }}{{ print }}
{{- (index .Function.Parameters.Properties "city").Type }}{{ end }}
{{- range .Messages }}{{ print .Role ": " .Content "\n" }}{{ range .ToolCalls }}{{ printf "%s%%%v" .Function.Name .Function.Arguments }}{{ json .Function.Arguments }}{{ end }}{{ end }}`

func main() {
	yes, no := true, false
	asked := message{Role: "user", Content: "What is 2 < 3 & \"so\"?\n"}
	told := message{Role: "system", Content: "Be {{ brief }}."}
	said := message{Role: "assistant", Content: "Yes.", Thinking: "Hm."}
	calls := message{Role: "assistant", ToolCalls: []call{{ID: "a1", Function: callFunction{
		Name: "weather", Arguments: args{"days": 2, "city": "<Ulm>"}}}}}
	result := message{Role: "tool", Content: "rain", ToolName: "weather", ToolCallID: "a1"}
	more := message{Role: "user", Content: "And {% now %}?"}
	given := tools{
		{Type: "function", Function: toolFunction{Name: "weather", Description: "The \"weather\".", Parameters: params{
			Type: "object", Required: []string{"city", "days"}, Properties: props{
				"days": {Type: "integer", Enum: []any{1, 2}}, "city": {Type: "string", Description: "Its name."}}}}},
		{Type: "function", Function: toolFunction{Name: "clock", Parameters: params{Type: "object", Properties: props{}}}},
	}
	talks := []talk{
		{Messages: []message{asked}},
		{Messages: []message{told, asked}, Think: &yes},
		{Messages: []message{told, told, asked, said, more}, Think: &no},
		{Messages: []message{asked, more, said, said, more}},
		{Messages: []message{asked, said, told, more}},
		{Messages: []message{told, asked, calls, result, result}, Tools: given, Think: &yes},
		{Messages: []message{asked, said, more, calls, result, said, more}, Tools: given},
	}
	type rendered struct {
		Talk talk   `json:"talk"`
		Text string `json:"text"`
	}
	type fixture struct {
		Name     string     `json:"name"`
		Template string     `json:"template"`
		Rendered []rendered `json:"rendered"`
	}
	var all []fixture
	for _, one := range [][2]string{{"chatml", chatml}, {"bare", bare}, {"tooled", tooled}, {"odd", odd}, {"asking", asking}, {"named", named}} {
		fix := fixture{Name: one[0], Template: one[1]}
		for _, t := range talks {
			text, err := run(one[1], t)
			if err != nil {
				panic(err)
			}
			fix.Rendered = append(fix.Rendered, rendered{t, text})
		}
		all = append(all, fix)
	}
	b, _ := json.MarshalIndent(all, "", " ")
	fmt.Println(string(b))
}
