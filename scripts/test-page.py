#!/usr/bin/env python3
"""Uses the chat page as people do: test-page.py URL URL-WITH-KEY KEY URL-OF-SEVERAL PICTURES

Drives Chromium by the DevTools protocol through a pipe. Nothing that the page does may break its policy or reach the console as an
error.
"""
import base64, fcntl, json, os, select, shutil, subprocess, sys, tempfile, time, urllib.request

SIZES = {"desk": (1280, 800, False), "phone": (390, 844, True)}
PATIENCE_S = 60
FOX = "Tell me a story about a fox."

# Hostile answers of a model, and their meaning as Markdown.
HOSTILE = r"""# Title <b id=x1>bold</b>

<script>window.pwned = 1</script><img id=x2 src=x onerror="window.pwned = 2">

[script](javascript:window.pwned=3) [data](data:text/html,x) [web](https://example.org/a?b=c) and https://example.org/d.

**bold *both*** and *one **two*** and `<i id=x3>` and snake_case_name, 2 \* 3

- one
- two
  1. inner

> quote

| a | b |
|---|:-:|
| <u id=x4>1</u> | `2` |

```html"><img src=x onerror=window.pwned=4>
<script>window.pwned = 5</script>
```
""" + "[" * 5000 + "*" * 5000 + ">" * 5000


CODE = """
def f(x):  # 'no'
    return 'a # b' + x * 12
"""
FORMULAS = ["\\[\n\\sum_{i=1}^n x_i * y_i\n- 1\n\\]", "$a_1 * b_2$", "\\(c_*\\)", "$$d$$", "\\[e\\]",
            "\\begin{align*}\na_1 &= b_1 * c \\\\\nd*e*f &= _g_\n\\end{align*}"]
WRITTEN = f"""As follows:
{FORMULAS[0]}

With {FORMULAS[1]} and {FORMULAS[2]}, it costs $5 or $6. Then {FORMULAS[3]} too, and {FORMULAS[4]} as well.
{FORMULAS[5]}

- [ ] buy milk
- [x] sleep

```python{CODE}```
"""


class Browser:
    """Chromium with one page."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        (to_read, self.to), (self.back, to_write) = os.pipe(), os.pipe()
        # Above those that the shell moves them to.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_read, to_write)]
        command = ["chromium", "--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]
        if os.getuid() == 0:
            command.insert(1, "--no-sandbox")
        self.log = open(os.path.join(self.profile, "log"), "w")
        script = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self.process = subprocess.Popen(["bash", "-c", script, "bash", *command], pass_fds=ends, stdout=self.log, stderr=self.log)
        for fd in (to_read, to_write, *ends):
            os.close(fd)
        self.number, self.rest, self.session, self.events = 0, b"", None, []
        self.answers = {}  # to dialogs of the browser's own: what they ask → what is entered
        self.replies = {}  # of the network: path → body in place of the server's
        self.posted = []

    def tell(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        return self.number

    def call(self, method, **params):
        number = self.tell(method, **params)
        end = time.time() + PATIENCE_S
        while time.time() < end:
            for message in self.receive(end - time.time()):
                if message.get("id") == number:
                    assert "error" not in message, f"{method}: {message['error']}"
                    return message["result"]
        raise AssertionError(f"{method}: no answer")

    def receive(self, patience_s):
        """Messages that have come. Events wait until they are dealt with, other than dialogs, for which the browser itself waits."""
        if select.select([self.back], [], [], max(patience_s, 0))[0]:
            more = os.read(self.back, 1 << 20)
            assert more, "the browser has ended: " + open(self.log.name).read()[-2000:]
            *whole, self.rest = (self.rest + more).split(b"\0")
            messages = [json.loads(message) for message in whole]
            self.events += [message for message in messages if "method" in message]
            for message in messages:
                if message.get("method") == "Page.javascriptDialogOpening":
                    self.answer(message["params"]["message"])
            return messages
        return []

    def settle(self):
        """Deals with events until none is left."""
        self.receive(0)
        while self.events:
            event = self.events.pop(0)
            self.deal(event["method"], event["params"])

    def answer(self, question):
        found = [answer for part, answer in self.answers.items() if part in question]
        assert found, f"the page asks {question!r}"
        self.tell("Page.handleJavaScriptDialog", accept=True, promptText=found[0])

    def deal(self, method, params):
        if method == "Fetch.requestPaused":
            self.posted.append(params["request"].get("postData"))
            body = self.replies.pop(params["request"]["url"].rsplit("/", 1)[1], None)
            if body is None:
                self.call("Fetch.continueRequest", requestId=params["requestId"])
            else:
                headers = [{"name": "Content-Type", "value": "text/event-stream"}]
                self.call("Fetch.fulfillRequest", requestId=params["requestId"], responseCode=200, responseHeaders=headers,
                          body=base64.b64encode(body.encode()).decode())
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str([arg.get("value", arg.get("description")) for arg in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])

    def open(self, url, size):
        """A page of this size in a browser that knows nothing yet."""
        self.session, self.problems = None, []
        context = self.call("Target.createBrowserContext")["browserContextId"]
        self.downloads = tempfile.mkdtemp(dir=self.profile)
        self.call("Browser.setDownloadBehavior", behavior="allow", browserContextId=context, downloadPath=self.downloads)
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/chat/completions"}])
        width, height, is_phone = SIZES[size]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        self.call("Page.addScriptToEvaluateOnNewDocument", source="window.violations = []; document.addEventListener("
                  "'securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI));")
        self.call("Page.navigate", url=url)
        self.await_js("document.readyState === 'complete' && (document.querySelector('#model').textContent !== '…'"
                      " || document.querySelector('#key').open)")

    def reload(self):
        self.js("window.isOld = true")
        self.call("Page.reload")
        self.await_js("!window.isOld && document.readyState === 'complete'")

    def js(self, code):
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{code}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def await_js(self, code):
        end = time.time() + PATIENCE_S
        while True:
            self.settle()
            if found := self.js(code):
                return found
            assert time.time() < end, f"never: {code}; {self.problems}"
            time.sleep(0.02)

    def click(self, selector, text=None):
        """Clicks, or on a phone taps, where an element is that people can see."""
        find = f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility({{visibilityProperty: true}})"
        find += f" && ({json.dumps(text)} ?? e.textContent) === e.textContent).at(-1)"
        box = self.await_js(f"(() => {{ const e = {find}; if (!e) return null; e.scrollIntoView({{block: 'nearest'}});"
                            " const b = e.getBoundingClientRect(); const [x, y] = [b.x + b.width / 2, b.y + b.height / 2];"
                            " return e.contains(document.elementFromPoint(x, y)) && [x, y]; })()")
        point = {"x": box[0], "y": box[1]}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **point)
        self.settle()

    def press(self, name, shift=False):
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[name]
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, modifiers=8 * shift, **text)
        self.settle()

    def write(self, selector, text):
        self.click(selector)
        self.js("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def throttle(self, bytes_per_s):
        """How fast answers come: the demo model's are over in no time."""
        self.call("Network.emulateNetworkConditions", offline=False, latency=0, uploadThroughput=-1, downloadThroughput=bytes_per_s)

    def picture(self, path):
        png = self.call("Page.captureScreenshot")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(png))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


class Checks:
    def __init__(self, browser, url, size, pictures):
        self.browser, self.url, self.size, self.pictures = browser, url, size, pictures
        self.is_phone = size == "phone"

    def check(self, what, holds, found=None):
        print(f"test {self.size}: {what} ... {'ok' if holds else 'FAILED'}", flush=True)
        assert holds, str(found)[:3000]

    def send(self, text):
        self.browser.write("#text", text)
        self.browser.click("#send") if self.is_phone else self.browser.press("Enter")

    def bodies(self):
        return self.browser.js("[...document.querySelectorAll('#log .body')].map((e) => e.innerText)")

    def note(self):
        return self.browser.js("[...document.querySelectorAll('.note')].at(-1)?.textContent ?? ''")

    def is_running(self):
        return self.browser.js("!document.querySelector('#stop').hidden")

    def await_end(self):
        self.browser.await_js("document.querySelector('#stop').hidden")

    def menu(self):
        if self.is_phone:
            self.browser.click("#menu")

    def all(self):
        self.browser.open(self.url, self.size)
        for part in (self.looks, self.streams, self.edits, self.keeps, self.settings, self.text_is_text, self.names, self.panel,
                     self.lists, self.written, self.fingers, self.ends, self.fills, self.imports):
            part()
        self.check("the policy is kept", self.browser.js("violations") == [], self.browser.js("violations"))
        self.browser.settle()
        self.check("no error on the console", self.browser.problems == [], self.browser.problems)

    def looks(self):
        browser, backs = self.browser, {}
        for scheme in ("light", "dark"):
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            color = browser.js("getComputedStyle(document.body).backgroundColor")
            backs[scheme] = sum(int(part) for part in color[4:-1].split(","))
            browser.picture(f"{self.pictures}/{self.size}-{scheme}.png")
        self.check("dark is dark and light is light", backs["dark"] < 150 and backs["light"] > 600, backs)
        browser.call("Emulation.setEmulatedMedia", features=[])
        if not self.is_phone:
            self.check("one can write at once", browser.js("document.activeElement.id") == "text")

    def streams(self):
        browser = self.browser
        browser.throttle(6000)
        self.send(FOX)
        early = browser.await_js("document.querySelector('.assistant .body')?.innerText.length")
        later = browser.await_js(f"(document.querySelector('.assistant .body').innerText.length > {early}) && "
                                 "document.querySelector('.assistant .body').innerText.length")
        self.check("text appears while it is written", self.is_running() and later > early)
        browser.click("#stop") if self.is_phone else browser.press("Escape")
        self.await_end()
        stopped = self.bodies()[1]
        self.check("an answer is stopped", self.note() == "Stopped", self.note())
        metrics = lambda: urllib.request.urlopen(self.url + "metrics").read().decode()
        end = time.time() + PATIENCE_S
        while "\nleap_jobs_running 0\n" not in metrics():
            assert time.time() < end, metrics()
        self.check("the server stops too", True)
        browser.throttle(-1)
        self.check("what was written stays", stopped and self.bodies()[1] == stopped, stopped)

    def edits(self):
        browser = self.browser
        before = self.bodies()
        browser.click(".user .foot button", "Edit")
        browser.write(".edit textarea", "Tell me a story about a cat.")
        browser.click(".edit button", "Send") if self.is_phone else browser.press("Enter")
        browser.await_js("document.querySelectorAll('#log .body').length === 2")
        self.await_end()
        edited = self.bodies()
        self.check("a message is edited and answered anew", edited[0].endswith("a cat.") and edited[1] not in ("", before[1]), edited)
        self.check("the answer's figures are shown", "tokens" in self.note(), self.note())
        self.check("screen readers hear the answer", browser.js("document.querySelector('#live').textContent.length") > 10)
        browser.click(".assistant .foot button", "Regenerate")
        self.await_end()
        again = self.bodies()
        self.check("an answer is written anew", len(again) == 2 and again[1] not in ("", edited[1]), again)
        browser.click(".user .foot button", "Edit")
        browser.press("Escape")
        self.check("an edit is left as it was", self.bodies() == again)
        if not self.is_phone:
            browser.click("#text")
            browser.call("Input.insertText", text="One")
            browser.press("Enter", shift=True)
            browser.call("Input.insertText", text="two")
            self.check("Shift and Enter begin a line", browser.js("document.querySelector('#text').value") == "One\ntwo")
        self.send("And then?")
        self.await_end()
        self.check("a conversation goes on", len(self.bodies()) == 4 and self.bodies()[:2] == again, self.bodies())

    def keeps(self):
        before = self.bodies()
        self.browser.reload()
        self.browser.await_js("document.querySelectorAll('#log .body').length === 4")
        self.check("a conversation outlives a reload", self.bodies() == before, self.bodies())

    def settings(self):
        browser, texts = self.browser, []
        self.menu()
        browser.click("#settings-open")
        for name, value in (("system", "You tell short stories."), ("temperature", "0.5"), ("top_p", "0.9"), ("max_tokens", "12"), ("seed", "7")):
            browser.write(f"#settings [name={name}]", value)
        browser.picture(f"{self.pictures}/{self.size}-settings.png")
        browser.click("#settings button", "Save")
        if self.is_phone:
            browser.press("Escape")
        # They are taken when the dialog has closed.
        browser.await_js("document.querySelector('#settings [name=seed]').value === ''")
        for _ in range(2):
            browser.click(".assistant .foot button", "Regenerate")
            self.await_end()
            texts.append(self.bodies()[-1])
        posted = json.loads(browser.posted[-1])
        found = {name: posted.get(name) for name in ("temperature", "top_p", "max_tokens", "seed")}
        self.check("settings are sent", found == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 12, "seed": 7}
                   and posted["messages"][0] == {"role": "system", "content": "You tell short stories."}, posted)
        self.check("a seed gives the same text", texts[0] == texts[1] != "", texts)
        self.check("an answer that is cut says so", "cut" in self.note(), self.note())

    def text_is_text(self):
        browser = self.browser
        deltas = [{"reasoning_content": "<img src=x onerror=window.pwned=6>"}, *({"content": HOSTILE[at:at + 7]} for at in range(0, len(HOSTILE), 7))]
        events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        browser.replies["completions"] = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        start = time.time()
        self.send("<script>window.pwned = 7</script>")
        browser.await_js("document.querySelectorAll('#log .body').length === 6")
        self.await_end()
        time.sleep(0.3)
        self.check("hostile text takes no time", time.time() - start < 20, time.time() - start)
        found = browser.js("[window.pwned ?? 0, document.querySelectorAll('#x1, #x2, #x3, #x4, #log img, #log script').length]")
        self.check("a model's HTML stays text", found == [0, 0], found)
        links = browser.js("[...document.querySelectorAll('#log a')].map((a) => a.href + ' ' + a.rel)")
        wanted = [f"https://example.org/{path} noopener noreferrer" for path in ("a?b=c", "d")]
        self.check("only addresses of the web are links", links == wanted, links)
        shown = browser.js("""[...document.querySelectorAll('.assistant .body')].at(-1).innerHTML""")
        for part in ("<h3>Title &lt;b id=x1&gt;bold&lt;/b&gt;</h3>", "<strong>bold <em>both</em></strong>", "<em>one <strong>two</strong></em>", "<code>&lt;i id=x3&gt;</code>",
                     "snake_case_name, 2 * 3", "<ul><li>one</li><li>two<ol start=\"1\"><li>inner</li></ol></li></ul>",
                     "<blockquote><p>quote</p></blockquote>", "<th>a</th>", "<td><code>2</code></td>", '<script>window.pwned = <span class="c-number">5</span>'):
            part = part.replace("<script>", "&lt;script&gt;")
            self.check(f"Markdown: {part[:40]}", part in shown, shown)
        self.check("thoughts are folded", browser.js("(() => { const t = [...document.querySelectorAll('.thoughts')].at(-1);"
                                                     " return !t.hidden && !t.open && t.lastChild.textContent.includes('<img'); })()"))
        browser.click(".code button", "Copy")
        browser.await_js("[...document.querySelectorAll('.code button')].some((b) => b.textContent === 'Copied')")
        self.check("code is copied", True)
        width = browser.js("[document.documentElement.scrollWidth, innerWidth]")
        self.check("nothing is wider than the screen", width[0] <= width[1], width)
        browser.js("document.querySelector('#log').scrollTop -= 6000")
        browser.picture(f"{self.pictures}/{self.size}-markdown.png")

    def names(self):
        tree = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = ("button", "textbox", "link", "dialog", "checkbox", "spinbutton")
        nameless = [node["role"]["value"] for node in tree if not node.get("ignored") and node.get("role", {}).get("value") in roles
                    and not node.get("name", {}).get("value")]
        self.check("every control has a name", nameless == [], nameless)
        if not self.is_phone:
            self.browser.js("document.querySelector('#new').focus()")
            order = []
            for _ in range(40):
                order.append(self.browser.js("document.activeElement.id"))
                self.browser.press("Tab")
            named = [name for name in order if name in ("new", "settings-open", "rename", "log", "text", "send")]
            self.check("the Tab key goes from top to bottom", named[:6] == ["new", "settings-open", "rename", "log", "text", "send"], order)

    def panel(self):
        browser = self.browser
        self.menu()
        browser.click("#server summary")
        browser.await_js("document.querySelectorAll('#figures dd').length === 6")
        browser.picture(f"{self.pictures}/{self.size}-panel.png")
        rows = browser.js("Object.fromEntries([...document.querySelectorAll('#figures dt')].map((e) => [e.textContent, e.nextSibling.textContent]))")
        self.check("the panel shows the server", rows["Model"] == "demo" and rows["Answers running"] == "0"
                   and rows["Writing"].endswith("tokens/s"), rows)
        browser.click("#server summary")
        if self.is_phone:
            browser.press("Escape")
            self.check("Escape closes the menu", browser.js("document.activeElement.id") == "menu")

    def several(self):
        browser = self.browser
        browser.open(self.url, self.size)
        browser.await_js("document.querySelector('#model').textContent === 'one of 2 models'")
        browser.click("#settings-open")
        names = browser.js("[...document.querySelectorAll('#models option')].map((e) => e.value)")
        self.check("a conversation may choose among several models", names == ["", "demo", "second"], names)
        browser.js("document.querySelector('#models select').value = 'second'")
        browser.picture(f"{self.pictures}/{self.size}-models.png")
        browser.click("#settings button", "Save")
        browser.await_js("document.querySelector('#model').textContent === 'second'")
        self.send(FOX)
        browser.await_js("document.querySelectorAll('#log .body').length === 2")
        self.await_end()
        posted = json.loads(browser.posted[-1])
        self.check("the chosen model is asked", posted["model"] == "second" and self.bodies()[1] != "", posted)

    def lists(self):
        browser = self.browser
        title = "document.querySelector('#title').textContent"
        browser.answers = {"Title": "Of cats", "Delete": ""}
        browser.click("#rename")
        browser.await_js(f"{title} === 'Of cats'")
        self.check("a conversation is renamed", browser.js("document.title") == "Of cats – LEAP")
        browser.click("#export")
        end = time.time() + PATIENCE_S
        while not os.path.exists(f"{browser.downloads}/Of-cats.json"):
            assert time.time() < end, os.listdir(browser.downloads)
            time.sleep(0.05)
        time.sleep(0.2)
        with open(f"{browser.downloads}/Of-cats.json") as file:
            exported = json.load(file)
        self.check("a conversation is exported", [m["role"] for m in exported["messages"]] == ["user", "assistant"] * 3, exported)
        self.menu()
        browser.click("#new")
        self.send("Hi.")
        self.await_end()
        self.menu()
        browser.click("#list button", "Of cats")
        browser.await_js(f"{title} === 'Of cats' && document.querySelectorAll('#log .body').length === 6")
        self.check("conversations are changed", browser.js("document.querySelectorAll('#list li').length") == 2)
        browser.click("#delete")
        browser.await_js("document.querySelectorAll('#list li').length === 1")
        kept = browser.js("Object.keys(localStorage).filter((name) => name.startsWith('leap.chat.')).length")
        self.check("a conversation is deleted", kept == 1, kept)

    def new_chat(self):
        self.menu()
        self.browser.click("#new")

    def says(self, text, *more):
        """An answer in the server's place."""
        deltas = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}, *more]
        self.browser.replies["completions"] = "".join(f"data: {json.dumps(event)}\n\n" for event in deltas) + "data: [DONE]\n\n"

    def written(self):
        browser = self.browser
        self.new_chat()
        self.says(WRITTEN)
        self.send("Write.")
        browser.await_js("document.querySelectorAll('#log .body').length === 2")
        self.await_end()
        browser.await_js("document.querySelectorAll('.formula').length === 6")
        posted = json.loads(browser.posted[-1])
        self.check("settings are a conversation's own", "temperature" not in posted and posted["messages"][0]["role"] == "user", posted)
        formulas = browser.js("[...document.querySelectorAll('.formula')].map((e) => e.textContent)")
        self.check("formulas stay as they were written", formulas == FORMULAS, formulas)
        boxes = browser.js("[...document.querySelectorAll('li > input')].map((e) => [e.checked, e.disabled, e.parentNode.innerText.trim()])")
        self.check("tasks have boxes", boxes == [[False, True, "buy milk"], [True, True, "sleep"]], boxes)
        colours = browser.js("[...document.querySelectorAll('pre [class^=c-]')].map((e) => e.className + ' ' + e.textContent)")
        self.check("code is coloured", colours == ["c-keyword def", "c-note # 'no'", "c-keyword return", "c-quoted 'a # b'", "c-number 12"], colours)
        self.check("code is as it was written", browser.js("document.querySelector('pre code').textContent") == CODE.strip())
        browser.picture(f"{self.pictures}/{self.size}-written.png")

    def fingers(self):
        if not self.is_phone:
            return
        self.menu()
        small = self.browser.js("""[...document.querySelectorAll('button, summary, textarea, #side input')].filter((e) => e.checkVisibility())
            .map((e) => [e.id || e.textContent, e.getBoundingClientRect()]).filter(([, { width, height }]) => width < 44 || height < 44)
            .map(([name, { width, height }]) => `${name} ${width} ${height}`)""")
        self.check("fingers find every button", small == [], small)
        self.browser.press("Escape")

    def ends(self):
        browser = self.browser
        self.new_chat()
        browser.call("Network.emulateNetworkConditions", offline=True, latency=0, uploadThroughput=-1, downloadThroughput=-1)
        self.send("Is anybody there?")
        self.await_end()
        said = browser.js("document.querySelector('#problem').textContent")
        self.check("a server that is gone is told of, and what to do", "not reached" in said and "Regenerate" in said, said)
        browser.throttle(-1)
        browser.click(".assistant .foot button", "Regenerate")
        self.await_end()
        self.check("the conversation goes on with it", self.bodies()[-1] != "" and not browser.js("document.querySelector('#problem').textContent"))
        browser.throttle(3000)
        self.send(FOX)
        browser.await_js("[...document.querySelectorAll('.assistant .body')].at(-1)?.innerText.length > 10")
        browser.reload()
        browser.throttle(-1)
        browser.await_js("document.querySelectorAll('#log .body').length === 4")
        self.check("a reload in mid-answer says what to do", "Regenerate" in self.note() and not self.is_running(), self.note())
        self.check("what had come is kept", self.bodies()[-1] != "", self.bodies())
        self.send("And then?")
        self.await_end()
        self.check("and the conversation goes on", len(self.bodies()) == 6 and self.bodies()[-1] != "", self.bodies())
        # Losing the server is an error of the network, which the console tells.
        browser.settle()
        browser.problems = [problem for problem in browser.problems if "ERR_" not in problem]

    def fills(self):
        browser = self.browser
        browser.replies["completions"] = "data: " + json.dumps({"error": {"message": "the prompt has 9 tokens, the context 8",
                                                               "code": "context_length_exceeded"}}) + "\n\n"
        self.send("What now?")
        browser.await_js("!document.querySelector('#shorten').hidden")
        said = browser.js("document.querySelector('#problem').textContent")
        self.check("a full context is told of", "longer than the model's context" in said, said)
        browser.click("#shorten button")
        browser.await_js("document.querySelector('#shorten').hidden")
        self.await_end()
        posted = json.loads(browser.posted[-1])["messages"]
        self.check("the conversation goes on without its oldest messages", len(posted) < 7 and posted[0]["role"] == "user"
                   and posted[-1]["content"] == "What now?" and self.bodies()[-1] != "", posted)
        self.check("what is left out can be seen", browser.js("document.querySelectorAll('.left-out').length") > 0)

    def imports(self):
        browser = self.browser
        before = browser.js("document.querySelectorAll('#list li').length")
        for name, text in (("broken.json", "{"), ("other.json", "[1]")):
            self.choose(name, text)
            browser.await_js(f"document.querySelector('#problem').textContent.startsWith('{name} was not imported')")
        self.check("what is no conversation is refused by name", browser.js("document.querySelectorAll('#list li').length") == before)
        self.choose("good.json", open(f"{browser.downloads}/Of-cats.json").read())
        browser.await_js(f"document.querySelectorAll('#list li').length === {before + 1}")
        self.check("an export is imported", len(self.bodies()) == 6 and browser.js("document.querySelector('#title').textContent") == "Of cats")

    def choose(self, name, text):
        path = os.path.join(self.browser.downloads, name)
        with open(path, "w") as file:
            file.write(text)
        node = self.browser.call("Runtime.evaluate", expression="document.querySelector('#file')")["result"]["objectId"]
        self.browser.call("DOM.setFileInputFiles", files=[path], objectId=node)

    def key(self, url, key):
        browser = self.browser
        for keeps in (False, True):
            if not keeps:
                browser.open(url, self.size)
            browser.await_js("document.querySelector('#key').open")
            browser.write("#key [name=key]", "wrong")
            browser.press("Enter")
            browser.await_js("document.querySelector('#key').open && document.querySelector('#key [name=key]').value === ''")
            browser.write("#key [name=key]", key)
            if keeps:
                browser.click("#key [name=keep]")
            browser.press("Enter")
            browser.await_js("document.querySelector('#model').textContent === 'demo'")
            self.send("Hi.")
            self.await_end()
            kept = browser.js("[sessionStorage['leap.key'], localStorage['leap.key'] ?? null].map(JSON.parse)")
            self.check("a key is kept only where that is wished", kept == [key, key if keeps else None] and self.bodies()[-1], kept)
            browser.js("sessionStorage.clear()")
            browser.reload()
        browser.await_js("document.querySelector('#model').textContent === 'demo'")
        self.check("a kept key outlives the session", True)
        browser.settle()
        others = [problem for problem in browser.problems if "401" not in problem]
        self.check("no error on the console but the refusals", others == [] and browser.js("violations") == [], others)


def main():
    url, url_with_key, key, url_of_several, pictures = sys.argv[1:]
    browser = Browser()
    try:
        for size in SIZES:
            Checks(browser, url, size, pictures).all()
        Checks(browser, url_with_key, "desk", pictures).key(url_with_key, key)
        Checks(browser, url_of_several, "desk", pictures).several()
    finally:
        browser.close()


main()
