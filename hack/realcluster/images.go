package realcluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"fixedip.io/fixedip/hack/realcluster/layout"
)

// testImages are the images of the test pods. Key: the name. Value: what testpod is to do.
var testImages = map[string]string{layout.PauseImage: "pause", layout.WebImage: "serve"}

// imageConfig is the part of an image's configuration that is needed here (OCI image specification).
type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Entrypoint []string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// archivedImage is an entry of the manifest of an archive that docker save writes.
type archivedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeTestImages writes an archive with the images of the test pods: one layer with one file.
func writeTestImages(path, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the program of the test pods: %w", err)
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, []tarFile{{"testpod", 0o755, binary}}); err != nil {
		return fmt.Errorf("pack the test pods: %w", err)
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(layer.Bytes()))
	files := []tarFile{{digest + ".tar", 0o644, layer.Bytes()}}
	var manifest []archivedImage
	for name, mode := range testImages {
		config := imageConfig{Architecture: runtime.GOARCH, OS: "linux"}
		config.Config.Entrypoint = []string{"/testpod", mode}
		config.RootFS.Type = "layers"
		config.RootFS.DiffIDs = []string{"sha256:" + digest}
		data, err := json.Marshal(config)
		if err != nil {
			return fmt.Errorf("pack the image %s: %w", name, err)
		}
		file := fmt.Sprintf("%x.json", sha256.Sum256(data))
		files = append(files, tarFile{file, 0o644, data})
		manifest = append(manifest, archivedImage{Config: file, RepoTags: []string{name}, Layers: []string{digest + ".tar"}})
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("pack the test pods: %w", err)
	}
	archive, err := os.Create(filepath.Clean(path))
	if err != nil {
		return fmt.Errorf("pack the test pods: %w", err)
	}
	err = writeTar(archive, append(files, tarFile{"manifest.json", 0o644, data}))
	if err := errors.Join(err, archive.Close()); err != nil {
		return fmt.Errorf("pack the test pods: %w", err)
	}
	return nil
}

type tarFile struct {
	name string
	mode int64
	data []byte
}

func writeTar(w io.Writer, files []tarFile) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}
