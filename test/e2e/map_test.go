// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// mapPage opens the page of kubectl fixedip map --html in a browser. It checks that the page shows the addresses of web-0,
// web-1 and db-0 once each and loads no other resource, and that the script of the page does not fail. If update is true, it
// also writes the picture of the documentation, docs/reference/map.png.
func (c commands) mapPage() {
	c.t.Helper()
	page, code, err := c.run(filepath.Join(bin, "kubectl-fixedip"), "map", "--html")
	if err != nil || code != 0 {
		c.t.Fatalf("kubectl fixedip map --html: got exit code %d (error %v), want 0; output:\n%s", code, err, page)
	}
	file := filepath.Join(c.t.TempDir(), "map.html")
	c.must(os.WriteFile(file, []byte(page), 0o644))

	b := open(c.t, file)
	for _, pod := range []string{"web-0", "web-1", "db-0"} {
		address := c.addressOf(pod)
		var cells int
		// A cell has the address and the pod in its title, which the browser shows when the pointer is on the cell.
		b.run(chromedp.Evaluate(`[...document.querySelectorAll("[title], title")].filter(e => {
			const text = e.getAttribute("title") || e.textContent;
			return text.includes("`+address+`") && text.includes("default/`+pod+`");
		}).length`, &cells))
		if cells != 1 {
			c.t.Errorf("got %d cells of the page for pod %s with address %s, want 1", cells, pod, address)
		}
	}
	if len(b.requests) > 0 {
		c.t.Errorf("the page loads %v, want nothing", b.requests)
	}
	if len(b.failures) > 0 {
		c.t.Errorf("the script of the page fails: %v", b.failures)
	}
	if update {
		var picture []byte
		b.run(chromedp.FullScreenshot(&picture, 100))
		c.must(os.WriteFile(filepath.Join("..", "..", "docs", "reference", "map.png"), picture, 0o644))
	}
}

// browser is a page that is open in a headless browser.
type browser struct {
	t   *testing.T
	ctx context.Context
	// requests contains the URLs that the page has requested, without its own URL and data URLs.
	requests []string
	// failures contains the uncaught exceptions of the page's script.
	failures []string
}

// open opens a file in a headless browser, which ends with the test.
func open(t *testing.T, file string) *browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Fatal("this machine has no Chromium: install the Debian package chromium-headless-shell")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1320, 900),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true))
	allocated, stop := chromedp.NewExecAllocator(within(t), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	own := (&url.URL{Scheme: "file", Path: file}).String()
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; u != own && !strings.HasPrefix(u, "data:") {
				b.requests = append(b.requests, u)
			}
		case *runtime.EventExceptionThrown:
			b.failures = append(b.failures, e.ExceptionDetails.Error())
		}
	})
	b.run(network.Enable(), chromedp.Navigate(own), chromedp.WaitReady("body"))
	return b
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}
