package pgtest

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// populate makes the data directory and learns the password: a copy of this
// user's archive if there is a sound one, otherwise what initdb makes, of which
// the next server of these binaries gets a copy. Where there is no place for an
// archive, initdb runs each time.
func (s *Server) populate(ctx context.Context, fresh bool) error {
	archive, err := archiveFile(s.bin)
	if err != nil || fresh {
		return s.initdb(ctx)
	}
	if s.unpack(archive) == nil {
		return nil
	}
	// A damaged archive, or none.
	if err := os.RemoveAll(s.data()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if err := s.initdb(ctx); err != nil {
		return err
	}
	s.pack(archive)
	return nil
}

// initdb makes the data directory with a new password. It runs in the server's
// directory, where the watchdog finds it.
func (s *Server) initdb(ctx context.Context) error {
	s.password = randomHex(16)
	file := filepath.Join(s.dog.dir, "password")
	if err := os.WriteFile(file, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if err := own(file); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if err := output(program(ctx, s.dog.dir, s.bin+"/initdb", "-D", s.data(), "-U", "postgres", "-A", "scram-sha-256",
		"--pwfile="+file, "-E", "UTF8", "--no-locale", "--no-sync")); err != nil {
		return err
	}
	statement, err := s.setPassword()
	if err != nil {
		return err
	}
	single, err := program(ctx, s.dog.dir, s.bin+"/postgres", "--single", "-F", "-D", s.data(), "postgres")
	if err == nil {
		single.Stdin = strings.NewReader(statement)
	}
	return output(single, err)
}

// setPassword stores the password with one iteration of SCRAM. The usual 4096,
// which initdb takes, make guessing a weak password expensive; this one has 128
// random bits, and the iterations would cost each connection more than
// everything else.
func (s *Server) setPassword() (string, error) {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, s.password, salt, 1, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	mac := func(message string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(message))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("ALTER USER postgres PASSWORD 'SCRAM-SHA-256$1:%s$%s:%s'\n",
		encode(salt), encode(stored[:]), encode(mac("Server Key"))), nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// archiveFile returns the archive for the server binaries in a directory. Its
// name changes with them and with what populate makes, so that no archive is
// ever out of date.
func archiveFile(bin string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	key := "1 " + bin // a number for initdb's arguments
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			return "", err
		}
		key += fmt.Sprint(" ", info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(cache, "fencepost-pgtest", hex.EncodeToString(sum[:8])+".zip"), nil
}

// keepUnused is how long the archive of binaries that nobody uses stays.
const keepUnused = 30 * 24 * time.Hour

// pack makes the archive, which appears at once and whole, and removes those
// that have not been used for long. Processes that do so together all make the
// same. What the file system refuses is not an error: the next server runs initdb.
func (s *Server) pack(archive string) {
	dir := filepath.Dir(archive)
	if os.MkdirAll(dir, 0o700) != nil {
		return
	}
	file, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return
	}
	defer os.Remove(file.Name())
	content, err := zipped(os.DirFS(s.dog.dir))
	if err == nil {
		_, err = file.Write(append(content, checksum(content)...))
	}
	if errors.Join(err, file.Close()) == nil {
		_ = os.Rename(file.Name(), archive)
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > keepUnused {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}

// zipped stores files without compressing them, which would cost each start more
// than reading them does.
func zipped(files fs.FS) ([]byte, error) {
	var b bytes.Buffer
	archive := zip.NewWriter(&b)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			_, err := archive.Create(name + "/")
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	err = errors.Join(err, archive.Close())
	return b.Bytes(), err
}

// checksum is what an archive ends with. Those of the format do not cover the
// files' names.
func checksum(content []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)))
}

// unpack copies an archive into the server's directory. It fails if the archive
// is damaged anywhere.
func (s *Server) unpack(archive string) error {
	content, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	content, sum := content[:max(0, len(content)-crc32.Size)], content[max(0, len(content)-crc32.Size):]
	if !bytes.Equal(sum, checksum(content)) {
		return fmt.Errorf("pgtest: %s is damaged", archive)
	}
	files, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return err
	}
	if err := os.CopyFS(s.dog.dir, files); err != nil {
		return err
	}
	_ = os.Chtimes(archive, time.Time{}, time.Now()) // it is used
	password, err := os.ReadFile(filepath.Join(s.dog.dir, "password"))
	if err != nil {
		return err
	}
	s.password = string(password)
	return s.adopt()
}

// adopt gives the data directory to the server's user, and to nobody else.
func (s *Server) adopt() error {
	if err := os.Chmod(s.data(), 0o700); err != nil {
		return err
	}
	return filepath.WalkDir(s.data(), func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, own(name))
	})
}

func (s *Server) data() string { return filepath.Join(s.dog.dir, "data") }
