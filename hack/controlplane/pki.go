// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// certificateLife is the lifetime of the certificates, and so the maximum lifetime of a work folder.
const certificateLife = 10 * 365 * 24 * time.Hour

// pki contains the paths of the keys and certificates in the work folder, and the certificate of the authority.
type pki struct {
	// A start whose API server has other addresses signs a new serving certificate with the key in caKeyFile. Work folders of
	// earlier versions do not have this file.
	caFile, caKeyFile string
	certFile, keyFile string
	// kubeletClientCertFile and kubeletClientKeyFile contain the client certificate and its key, with which the API server
	// connects to kubelets.
	kubeletClientCertFile, kubeletClientKeyFile string
	serviceAccountKeyFile                       string
	caPEM                                       []byte
}

// ensurePKI returns the keys and certificates of an earlier run. If there are none, it creates them, with a serving
// certificate for the given addresses. If an existing serving certificate lacks one of the addresses, ensurePKI replaces the
// certificate. Kubeconfigs contain the certificate authority, so a restart must not change that authority.
func ensurePKI(dir string, addresses []net.IP) (*pki, error) {
	p := &pki{
		caFile:                filepath.Join(dir, "ca.crt"),
		caKeyFile:             filepath.Join(dir, "ca.key"),
		certFile:              filepath.Join(dir, "apiserver.crt"),
		keyFile:               filepath.Join(dir, "apiserver.key"),
		kubeletClientCertFile: filepath.Join(dir, "kubelet-client.crt"),
		kubeletClientKeyFile:  filepath.Join(dir, "kubelet-client.key"),
		serviceAccountKeyFile: filepath.Join(dir, "service-account.key"),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the key folder: %w", err)
	}
	// create writes the certificate of the authority last. If this file exists, all the other files exist too.
	caPEM, err := os.ReadFile(p.caFile)
	switch {
	case err == nil:
		p.caPEM = caPEM
		if err := p.coverAddresses(addresses); err != nil {
			return nil, err
		}
		return p, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	if err := p.create(addresses); err != nil {
		return nil, err
	}
	return p, nil
}

// coverAddresses replaces the stored serving certificate if it lacks one of the addresses. The new certificate has the same key
// and the same authority.
func (p *pki) coverAddresses(addresses []net.IP) error {
	stored, err := certutil.CertsFromFile(p.certFile)
	if err != nil {
		return fmt.Errorf("read the serving certificate: %w", err)
	}
	missing := slices.IndexFunc(addresses, func(a net.IP) bool { return !slices.ContainsFunc(stored[0].IPAddresses, a.Equal) })
	if missing < 0 {
		return nil
	}
	ca, err := certutil.ParseCertsPEM(p.caPEM)
	if err != nil {
		return fmt.Errorf("parse the certificate authority: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(p.caKeyFile)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the serving certificate %s does not cover address %s and can't be replaced, because the key of its authority was not stored; use the addresses of the earlier run or another work folder", p.certFile, addresses[missing])
	}
	if err != nil {
		return fmt.Errorf("read the key of the certificate authority: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("the key of the certificate authority in %s can't sign: it is a %T", p.caKeyFile, key)
	}
	return p.writeServing(addresses, stored[0].PublicKey, ca[0], signer)
}

// create creates a certificate authority, the certificates that it signs, and the key that signs service account
// tokens. It writes all of them to files.
func (p *pki) create(addresses []net.IP) error {
	caKey, err := newKey()
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "fixedip-controlplane-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caDER, err := sign(ca, ca, caKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("sign the certificate authority: %w", err)
	}
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return fmt.Errorf("parse the new certificate authority: %w", err)
	}

	serverKey, err := newKey()
	if err != nil {
		return err
	}
	clientKey, err := newKey()
	if err != nil {
		return err
	}
	client := &x509.Certificate{
		// A kubelet asks the API server whether this user is authorized. Members of system:masters have all rights.
		Subject:     pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{user.SystemPrivilegedGroup}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	clientDER, err := sign(client, ca, clientKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("sign the client certificate for kubelets: %w", err)
	}
	serviceAccountKey, err := newKey()
	if err != nil {
		return err
	}

	p.caPEM = encodeCertificate(caDER)
	if err := errors.Join(
		writeKey(p.caKeyFile, caKey),
		writeKey(p.keyFile, serverKey),
		writeKey(p.kubeletClientKeyFile, clientKey),
		writeKey(p.serviceAccountKeyFile, serviceAccountKey),
		writePrivate(p.kubeletClientCertFile, encodeCertificate(clientDER)),
		p.writeServing(addresses, serverKey.Public(), ca, caKey),
	); err != nil {
		return err
	}
	// Write this file last: a later start that finds this file uses the other files.
	return writePrivate(p.caFile, p.caPEM)
}

// writeServing writes a serving certificate for the addresses.
func (p *pki) writeServing(addresses []net.IP, public crypto.PublicKey, ca *x509.Certificate, caKey crypto.Signer) error {
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: addresses,
	}
	der, err := sign(serving, ca, public, caKey)
	if err != nil {
		return fmt.Errorf("sign the serving certificate: %w", err)
	}
	return writePrivate(p.certFile, encodeCertificate(der))
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a private key: %w", err)
	}
	return key, nil
}

// sign adds a serial number and the lifetime to the template and returns the signed certificate in DER.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// The certificate must be valid even if the clock of the machine is set back by less than an hour.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(certificateLife)
	return x509.CreateCertificate(rand.Reader, template, parent, public, signer)
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode the key for %s: %w", path, err)
	}
	return writePrivate(path, data)
}

// writePrivate atomically writes a file that only its owner can read. If the process is killed, the path has no partial
// file.
func writePrivate(path string, data []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}
