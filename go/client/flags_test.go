package client

import (
	"flag"
	"strings"
	"testing"
	"time"
)

func TestFlagsSetTheOptions(t *testing.T) {
	var flags Flags
	set := flag.NewFlagSet("", flag.ContinueOnError)
	flags.Register(set)
	if err := set.Parse(strings.Fields("--api tcp://127.0.0.1:1 --once --instance-id 18446744073709551615 --rev 3 --min-sync-interval 2000")); err != nil {
		t.Fatal(err)
	}
	equals(t, "options", flags.Options("a"), Options{Name: "a", Once: true, Resume: Revision{1<<64 - 1, 3}, MinInterval: 2 * time.Second})
	conn, err := flags.Dial()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAFlagThatNeedsAnotherIsAnError(t *testing.T) {
	for arguments, problem := range map[string]string{
		"--rev 3":                          "--instance-id and --rev need each other",
		"--instance-id 3":                  "--instance-id and --rev need each other",
		"--tls-ca ca --tls-cert c":         "--tls-cert and --tls-key need each other",
		"--tls-cert c --tls-key k":         "--tls-cert needs --tls-ca",
		"--api tcp://a:1 --tls-ca /x/ca":   "/x/ca",
		"--api unix:///a --tls-ca /x/ca":   "does not use TLS",
		"--api unix://relative/brain.sock": "the path must be absolute",
	} {
		var flags Flags
		set := flag.NewFlagSet("", flag.ContinueOnError)
		flags.Register(set)
		if err := set.Parse(strings.Fields(arguments)); err != nil {
			t.Fatal(err)
		}
		if _, err := flags.Dial(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}
