PS1= PS2= PS4='+ '
set +H +o history
unset HISTFILE PROMPT_COMMAND TMOUT
exec 61>&1 62>&2
__osb_say() { printf '%s' "$__osb_mark" >&61; printf '%s' "$__osb_mark" >&62; printf '%s\n' "$1" >&0; }
__osb_end() {
    case $1 in
        0) ;;
        130) __osb_say '{"kind":"error","name":"KeyboardInterrupt","value":"interrupted","traceback":["interrupted"]}' ;;
        *) __osb_say '{"kind":"error","name":"CommandExecError","value":"'"$1"'","traceback":["exit status '"$1"'"]}' ;;
    esac
    __osb_say '{"kind":"end"}'
}
