// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/testutil"
)

// Metrics contains the metrics that a program serves. Key: the name.
type Metrics map[string]*dto.MetricFamily

// Read reads the metrics at a URL.
func Read(ctx context.Context, from *http.Client, url string) (Metrics, error) {
	body, err := Get(ctx, from, url)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", url, err)
	}
	return families, nil
}

// Get requests a URL. It returns an error unless the response has the status 200. The caller closes the body.
func Get(ctx context.Context, from *http.Client, url string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := from.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("%s responded with status %s: %s", url, response.Status, text)
	}
	return response.Body, nil
}

// Save requests a URL and writes the body of the response into a file. It creates the folder of the file.
func Save(ctx context.Context, from *http.Client, url, path string) error {
	body, err := Get(ctx, from, url)
	if err != nil {
		return fmt.Errorf("read %s: %w", url, err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("read %s: %w", url, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// SaveServed is like Save, but first waits until a program listens at the URL.
func SaveServed(ctx context.Context, from *http.Client, url, path string) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := Save(ctx, from, url, path)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return false, nil
		}
		return true, err
	})
}

// Each calls visit with the labels and the value of each time series of a metric. The value of a histogram is the sum of its
// observations.
func (m Metrics) Each(name string, visit func(labels map[string]string, value float64)) {
	for _, metric := range m[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range metric.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		switch {
		case metric.Histogram != nil:
			visit(labels, metric.GetHistogram().GetSampleSum())
		case metric.Gauge != nil:
			visit(labels, metric.GetGauge().GetValue())
		default:
			visit(labels, metric.GetCounter().GetValue()+metric.GetUntyped().GetValue())
		}
	}
}

// Sum returns the sum of the values of all time series of a metric that have the given labels; see Each for the
// values.
func (m Metrics) Sum(name string, with map[string]string) float64 {
	sum := 0.0
	m.Each(name, func(labels map[string]string, value float64) {
		for key, want := range with {
			if labels[key] != want {
				return
			}
		}
		sum += value
	})
	return sum
}

// Latency contains the quantiles of a histogram of seconds, interpolated within its buckets.
type Latency struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	// Buckets are the buckets of the histogram in ascending order.
	Buckets []Bucket `json:"buckets"`
}

// Bucket contains the number of observations of at most UpTo seconds. The bucket without a limit is left out.
type Bucket struct {
	UpTo  float64 `json:"upTo"`
	Count uint64  `json:"count"`
}

// Latency returns the quantiles of a histogram over all its time series that have the given labels. It returns the
// zero Latency if there are no observations.
func (m Metrics) Latency(name string, with map[string]string) Latency {
	var all testutil.HistogramVec
	for _, metric := range m[name].GetMetric() {
		if testutil.LabelsMatch(metric, with) && metric.GetHistogram().GetSampleCount() > 0 {
			all = append(all, &testutil.Histogram{Histogram: metric.GetHistogram()})
		}
	}
	if len(all) == 0 {
		return Latency{}
	}
	counts := map[float64]uint64{}
	for _, h := range all {
		for _, b := range h.GetBucket() {
			counts[b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
	l := Latency{Count: all.GetAggregatedSampleCount(), P50: all.Quantile(0.5), P99: all.Quantile(0.99)}
	for _, bound := range slices.Sorted(maps.Keys(counts)) {
		if !math.IsInf(bound, 1) {
			l.Buckets = append(l.Buckets, Bucket{bound, counts[bound]})
		}
	}
	return l
}

// Requests returns the number of requests that an API server has served for resources, without lists and watches. Key: verb,
// resource and subresource, such as "PATCH ciliumnodes/status".
func (m Metrics) Requests() map[string]float64 {
	found := map[string]float64{}
	m.Each("apiserver_request_total", func(l map[string]string, n float64) {
		if l["resource"] != "" && l["verb"] != "LIST" && l["verb"] != "WATCH" {
			found[RequestKey(l["verb"], l["resource"], l["subresource"])] += n
		}
	})
	return found
}

// RequestKey returns the key of a request in the result of Requests.
func RequestKey(verb, resource, subresource string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	return verb + " " + resource
}
